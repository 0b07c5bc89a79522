// A kernel of an engine that uses programmatic dependent launch to the full: it lets what follows
// it begin as soon as all its thread blocks run, and writes late. Until then each thread block
// looks at the first `warm` words that will be written, so that its multiprocessor has the old ones
// at hand. It copies `words` words of 8 bytes; `sink` takes one of each thread. Launched so that it
// may begin early itself, it waits for what is in front of it, as such kernels must.
//
// PTX for the driver to compile: there is nothing to be built where there is no nvcc.
#ifndef KVC_TESTS_GPU_EARLY_H
#define KVC_TESTS_GPU_EARLY_H

#include <stdint.h>

#include "kernels/pack_cuda.h"

#define EARLY_KERNEL  "late"
#define EARLY_THREADS 256u
#define EARLY_BLOCKS  66u // leave room for others on every GPU that can do this

struct early_args {
    uint64_t to, from, words, warm, ns, sink;
};

static const char early_code[] =
    ".version 7.8\n"
    ".target sm_90\n"
    ".address_size 64\n"
    ".visible .entry late(.param .u64 to, .param .u64 from, .param .u64 words,\n"
    "                     .param .u64 warm, .param .u64 ns, .param .u64 sink)\n"
    "{\n"
    "  .reg .u64 %to, %from, %words, %warm, %ns, %sink, %i, %j, %step, %at, %v, %sum, %now;\n"
    "  .reg .u32 %t, %n, %b, %g;\n"
    "  .reg .pred %p;\n"
    "  griddepcontrol.wait;\n"
    "  griddepcontrol.launch_dependents;\n"
    "  ld.param.u64 %to, [to];\n"
    "  ld.param.u64 %from, [from];\n"
    "  ld.param.u64 %words, [words];\n"
    "  ld.param.u64 %warm, [warm];\n"
    "  ld.param.u64 %ns, [ns];\n"
    "  ld.param.u64 %sink, [sink];\n"
    "  mov.u32 %t, %tid.x;\n"
    "  mov.u32 %n, %ntid.x;\n"
    "  mov.u32 %b, %ctaid.x;\n"
    "  mov.u32 %g, %nctaid.x;\n"
    "  mov.u64 %sum, 0;\n"
    "  cvt.u64.u32 %j, %t;\n"
    "  cvt.u64.u32 %step, %n;\n"
    "look:\n"
    "  setp.ge.u64 %p, %j, %warm;\n"
    "  @%p bra looked;\n"
    "  mad.lo.u64 %at, %j, 8, %to;\n"
    "  ld.global.ca.u64 %v, [%at];\n"
    "  add.u64 %sum, %sum, %v;\n"
    "  add.u64 %j, %j, %step;\n"
    "  bra look;\n"
    "looked:\n"
    "  mul.wide.u32 %i, %b, %n;\n"
    "  cvt.u64.u32 %j, %t;\n"
    "  add.u64 %i, %i, %j;\n"
    "  mad.lo.u64 %at, %i, 8, %sink;\n"
    "  st.global.u64 [%at], %sum;\n"
    "  mov.u64 %now, %globaltimer;\n"
    "  add.u64 %ns, %now, %ns;\n"
    "again:\n"
    "  mov.u64 %now, %globaltimer;\n"
    "  setp.lt.u64 %p, %now, %ns;\n"
    "  @%p bra again;\n"
    "  mul.wide.u32 %step, %g, %n;\n"
    "copy:\n"
    "  setp.ge.u64 %p, %i, %words;\n"
    "  @%p bra copied;\n"
    "  mad.lo.u64 %at, %i, 8, %from;\n"
    "  ld.global.u64 %v, [%at];\n"
    "  mad.lo.u64 %at, %i, 8, %to;\n"
    "  st.global.u64 [%at], %v;\n"
    "  add.u64 %i, %i, %step;\n"
    "  bra copy;\n"
    "copied:\n"
    "  ret;\n"
    "}\n";

// `launch` is cuLaunchKernelEx.
static inline int early_launch(int (*launch)(const struct pack_cuda_config *, void *, void **,
                                             void **),
                               void *kernel, void *stream, struct early_args *args)
{
    struct pack_cuda_attribute early = {.id = 6, .flag = 1};
    const struct pack_cuda_config config = {EARLY_BLOCKS, 1,      1, EARLY_THREADS, 1, 1, 0,
                                            stream,       &early, 1};
    void *parameters[] = {&args->to,   &args->from, &args->words,
                          &args->warm, &args->ns,   &args->sink};

    return launch(&config, kernel, parameters, NULL);
}

#endif
