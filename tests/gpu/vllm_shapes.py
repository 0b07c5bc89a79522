"""What the models are like that vLLM runs with random weights: config.json of each, by name. In a
rehearsal all are tiny."""

import kit

QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896,
    "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "vocab_size": 151936, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True, "hidden_act": "silu",
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 5e5, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, "hidden_act": "silu",
}
# Five layers with a sliding window to one without.
GEMMA = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 512,
    "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 32000, "sliding_window": 128,
    "query_pre_attn_scalar": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
}
# Three layers of gated delta nets to one of attention; without experts.
QWEN_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 512,
    "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 32000, "rope_theta": 1e6,
    "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    "hidden_act": "silu", "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "num_experts": 0, "num_experts_per_tok": 1, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}
# Attention and Mamba 2 side by side in each layer.
FALCON = {
    "architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1", "hidden_size": 512,
    "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 32000, "rope_theta": 1e6,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "hidden_act": "silu", "mamba_d_ssm": 512,
    "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 128,
    "mamba_d_conv": 4, "mamba_chunk_size": 128, "mamba_expand": 1, "mamba_rms_norm": False,
    "mamba_norm_before_gate": False, "mamba_conv_bias": True, "mamba_proj_bias": False,
    "projectors_bias": False, "attention_bias": False, "mlp_bias": False,
}
SHAPES = {
    "0.5B": QWEN, "8B": LLAMA, "small": {**QWEN, "num_hidden_layers": 8, "vocab_size": 32000},
    "window": GEMMA, "states": QWEN_NEXT, "all states": FALCON,
}
TINY = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1024,
        "linear_key_head_dim": 32, "linear_value_head_dim": 32}
if kit.REHEARSE:
    SHAPES = {name: {**shape, **TINY, "num_hidden_layers": min(shape["num_hidden_layers"], 6)}
              for name, shape in SHAPES.items()}
    SHAPES["8B"]["num_hidden_layers"] = SHAPES["0.5B"]["num_hidden_layers"] = 2
SHAPES["one head"] = {**SHAPES["small"], "num_key_value_heads": 1}
