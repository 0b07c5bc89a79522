/*
 * libkvcache: the worker's side of kvcached, and its manual.
 *
 * A worker connects, registers the parts of its model (which maps the daemon's memory), looks
 * prefixes up, loads what is leased into its own KV cache, and saves what it has computed. Bulk
 * bytes never cross the socket: the library copies between the worker's blocks and the daemon's
 * slots, on the worker's own stream where there is a GPU, and proves completion by a word in
 * shared memory. Nothing of it needs to run again for a save to be published.
 *
 * Threads: a client belongs to one thread at a time; several clients are independent. The library
 * makes no threads, installs no signal handlers, prints nothing, and calls nothing back. It gives a
 * descriptor to poll (kvc_fd). A client is unusable in a forked child (KVC_E_FORKED); its memory
 * is not inherited.
 *
 * Streams: what a call enqueues are one or more kernels, which may overlap each other but begin
 * when all that was on the stream before has ended, whatever that lets begin early. No other thread
 * may enqueue anything on the stream while the call runs. What comes later on it finds the copy
 * made; a kernel that was launched so that it may begin early (programmatic dependent launch) has
 * to wait for what is in front of it first, as behind any other kernel.
 *
 * Errors: every call returns a kvc_status; out-parameters are set only on KVC_OK unless said
 * otherwise. Whatever goes wrong is a miss or a block not saved, never wrong bytes: an engine may
 * ignore every error but those of arguments. After KVC_E_PROTOCOL, KVC_E_DISCONNECTED or
 * KVC_E_VERSION calls fail at once until kvc_reconnect; so they do when descriptors of the daemon
 * could not be received because this process had no number left (KVC_E_NO_FDS).
 *
 * Versions: a program goes on working with any later library of the same name (.so.0). Members are
 * added at the end of structs, 0 there means what was before, and the calls that take a struct
 * which has grown get a new version of their symbols (KVCACHE_0 is the first), beside which the
 * library keeps the old one for programs that know the old struct.
 *
 * Units: bytes, milliseconds, blocks. A block id is an index into the worker's KV cache. Keys are
 * KVC_KEY_BYTES each, one behind the other, in prompt order.
 */
#ifndef KVC_KVCACHE_H
#define KVC_KVCACHE_H

#include <stddef.h>
#include <stdint.h>

#ifdef KVC_IN_TREE
#include "proto/limits.h"
#include "proto/status.h"
#else
#include <kvcache/limits.h>
#include <kvcache/status.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define KVC_API __attribute__((visibility("default")))

typedef struct kvc_client kvc_client;

typedef enum kvc_role {
    KVC_ROLE_WORKER = 1,    /* saves and loads */
    KVC_ROLE_READER = 2,    /* loads; maps memory read-only */
    KVC_ROLE_SCHEDULER = 3, /* looks up, leases and hands over; maps nothing */
    KVC_ROLE_OPERATOR = 4,  /* statistics, administration */
} kvc_role;

/* Zeroed fields take the defaults in brackets. Strings are copied. */
typedef struct kvc_options {
    const char *socket;  /* [$KVCACHE_SOCKET, else /run/kvcached/kvcached.sock] */
    const char *name;    /* for people, in kvcachectl clients [the process's name] */
    kvc_role role;       /* [worker] */
    uint32_t connect_ms; /* bound on connect, register, map and reconnect, each [1000]; starting
                            CUDA and registering memory with it (50 ms a GiB) come on top */
    uint32_t lookup_ms;  /* bound on a lookup, a reply to load, release, adopt, extend [100] */
    uint32_t save_ms;    /* bound on a reply to save [KVC_SAVE_REPLY_MS] */
    uint32_t load_ms;    /* bound on a load that the daemon copies, and again on its end [1000] */
    uint32_t remote_ms;  /* a lookup has peers asked for what is not here, for so long [0: not] */
} kvc_options;

/* Connects and says hello. *client is the caller's, until kvc_close. */
KVC_API kvc_status kvc_connect(const kvc_options *options, kvc_client **client);
/* The same; on an error why, which has room for size bytes, holds what kvc_error would say. */
KVC_API kvc_status kvc_connect_why(const kvc_options *options, kvc_client **client, char *why,
                                   size_t size);

/* Ends the session, unmaps and frees everything. Saves whose copies have ended are still published,
 * others are dropped. The one call that a forked child may make. NULL is fine. */
KVC_API void kvc_close(kvc_client *client);

/*
 * Connects again after the session broke or the daemon restarted: a new session, every part
 * registered and mapped anew (handles stay valid), and the old session declared drained, since no
 * copy of this client is still running. Saves and leases of the old session are gone: their
 * operations have ended with KVC_E_DISCONNECTED.
 */
KVC_API kvc_status kvc_reconnect(kvc_client *client);

/*
 * Readable when kvc_dispatch has something to do; do not read from it. -1 when not connected. After
 * an error the descriptor stays open, and readable, until kvc_reconnect or kvc_close, so that an
 * event loop can forget it in order.
 */
KVC_API int kvc_fd(const kvc_client *client);
/*
 * Takes in what the daemon has sent; never blocks, but for what is enqueued on a GPU when memory
 * has to be given back. Other calls do it too, while they wait. A worker that makes no calls for a
 * long time should still do this when kvc_fd is readable: memory that it does not need goes to
 * others only when it has let go of it.
 */
KVC_API kvc_status kvc_dispatch(kvc_client *client);

/* What the last failed call on this client said: "field: detail", valid until the next call. */
KVC_API const char *kvc_error(const kvc_client *client);

KVC_API const char *kvc_version(void); /* of the library */
KVC_API const char *kvc_text(kvc_status status);
KVC_API uint64_t kvc_session(const kvc_client *client);
KVC_API uint64_t kvc_boot_epoch(const kvc_client *client);
KVC_API const char *kvc_device(const kvc_client *client); /* "host" or "cuda" */
KVC_API kvc_status kvc_ping(kvc_client *client);

/* Names. */

/* Folds an engine's block hash into a key: the first 16 bytes, or XXH3-128 of a shorter one. */
KVC_API void kvc_key(const void *hash, size_t len, uint8_t key[KVC_KEY_BYTES]);

/* What makes KV data interchangeable; see PROTOCOL.md. NULL strings are "not given". */
typedef struct kvc_namespace {
    const char *model, *weights, *dtype, *kv_dtype, *quantization, *rope, *hash;
    uint32_t block_tokens;
    uint32_t first_layer, last_layer;
    uint32_t tensor_rank, tensor_size; /* identical shards pass rank 0 of size 1 */
    uint32_t pipeline_rank, pipeline_size;
    uint32_t context_rank, context_size;
} kvc_namespace;
KVC_API void kvc_namespace_digest(const kvc_namespace *fields, uint8_t digest[KVC_NAMESPACE_BYTES]);

/* Parts. */

/* Which blocks of a prefix a part needs, so that the rest can be computed. */
typedef enum kvc_rule {
    KVC_RULE_FULL = 0,   /* all of them */
    KVC_RULE_WINDOW = 1, /* the last ceil((window - 1) / block_tokens): sliding window attention */
    KVC_RULE_STATE = 2,  /* the last one: a recurrent state at the boundary */
} kvc_rule;

/* In place of a block id: the group has no such block (a null block, outside of its window). It is
 * neither saved nor loaded. */
#define KVC_NO_BLOCK UINT32_MAX

/* One contiguous piece of every block: block b's lies at base + b * stride. */
typedef struct kvc_slice {
    void *base; /* NULL for a scheduler */
    uint64_t stride;
    uint32_t bytes;
    uint8_t dtype; /* any numbering that engines sharing the cache agree on; 0 in all: not given */
} kvc_slice;

/*
 * Who copies a part's blocks. By default this library does, in the worker, and the worker's memory
 * is nobody else's business. The daemon can do it for workers that cannot: it maps their memory,
 * and its copies run beside the worker:
 *
 *  - kvc_save only asks. The source blocks must not be overwritten before kvc_wait or kvc_cancel
 *    says that the save has ended; `save` must be given.
 *  - kvc_load waits for the daemon, at most load_ms. See there for what must not be reused when it
 *    fails.
 *  - kvc_suspend waits until the daemon has left the memory alone.
 *
 * With a daemon that has a GPU it is memory of the client's GPU, which must be one of the daemon's,
 * and the library finds what it consists of by itself: allocations of cudaMalloc, or pieces that
 * were mapped with a handle of the kind of a descriptor (torch's expandable_segments), not memory
 * of a stream's pool or managed memory. Copies then wait for all that is on `stream`: a save for
 * what computes its blocks, a load for what still uses its destinations.
 */
typedef enum kvc_copy { KVC_COPY_WORKER = 0, KVC_COPY_DAEMON = 1 } kvc_copy;

/*
 * Memory that the daemon may map: `bytes` of a memfd from `offset` on, which this process has
 * mapped at base. All multiples of the page size, but for bytes. The library duplicates the
 * descriptor, seals the memfd against shrinking, and gives it all of its pages, so that they are
 * the worker's and not the daemon's. Not on hugetlbfs.
 */
typedef struct kvc_memory {
    int fd;
    void *base;
    uint64_t bytes, offset;
} kvc_memory;

/* One KV cache group of one shard. Arrays are copied; the memory slices point to must stay while
 * the part is registered. */
typedef struct kvc_part_desc {
    uint8_t namespace_digest[KVC_NAMESPACE_BYTES];
    const char *name; /* the model's, for people; may be NULL */
    uint32_t block_tokens;
    kvc_rule rule;
    uint32_t window; /* tokens, of a window part; else 0 */
    const kvc_slice *slices;
    uint32_t n_slices;
    uint32_t n_blocks;     /* block ids are 0 .. n_blocks - 1 */
    const uint8_t *family; /* 16 bytes that name the model, the same in all its parts on all ranks,
                              whose blocks are then evicted together; NULL: none. Of a part that
                              somebody has registered before, it stays what he said */
    kvc_copy copy;
    const kvc_memory *memories; /* for KVC_COPY_DAEMON: every slice lies in one of them, and no two
                                   slices or blocks share a byte; with a GPU not looked at */
    uint32_t n_memories;
} kvc_part_desc;

typedef uint32_t kvc_part; /* valid until unregistered, across kvc_reconnect */

/*
 * Registers a part and maps the tenant's memory. Registering an equal one gives the same handle,
 * and is what KVC_E_STALE asks for: the namespace has been flushed, and is used anew from here on.
 * With desc NULL the part *part is registered again as it was, with the same handle.
 */
KVC_API kvc_status kvc_register(kvc_client *client, const kvc_part_desc *desc, kvc_part *part);
/*
 * KVC_OK without a connection, too: the slices' memory is not used any more. That the daemon has
 * unmapped it is sure only with a connection.
 */
KVC_API kvc_status kvc_unregister(kvc_client *client, kvc_part part);

/* Leases. */

typedef struct kvc_lease {
    uint64_t id;                    /* 0: a miss */
    uint8_t token[KVC_TOKEN_BYTES]; /* for kvc_adopt in another process */
    uint32_t blocks;                /* of the granted prefix */
    uint32_t ms;                    /* granted time */
    uint32_t gpu, host;             /* where the first part's blocks are now */
    uint32_t pending;               /* blocks behind it that somebody is saving */
    uint32_t remote;                /* ... that other daemons are asked for, at most */
    uint64_t fetch;                 /* names what they are asked for, for kvc_remote; 0: nothing */
} kvc_lease;

/*
 * Leases the longest prefix of keys[n_keys] for which the rule of every part named holds: in all of
 * them, or in none. Of window and state parts only the blocks that the rule asks for are leased,
 * the last ones of the prefix; others cannot be loaded. request names the engine's request: asking
 * again under it extends the same lease; 0 makes a new one. ms 0 is the daemon's default. A miss is
 * KVC_OK with lease->id 0. More than KVC_KEYS_MAX keys are split; when a later packet of them is
 * refused or not answered, the lease ends before it.
 */
KVC_API kvc_status kvc_lookup(kvc_client *client, uint64_t request, const kvc_part *parts,
                              uint32_t n_parts, const uint8_t *keys, uint32_t n_keys, uint32_t ms,
                              kvc_lease *lease);
/*
 * The remote part of a lookup, with kvc_options.remote_ms: what is not here is fetched from other
 * daemons in the background, into this one's memory, while the leased part is being loaded. An
 * engine waits for it, and looks up again under the same request to lease what has come; or does
 * without it. Only parts of KVC_RULE_FULL are fetched.
 *
 * Waits at most ms (0: only looks) until it is over: KVC_OK, and *blocks (may be NULL) of the keys
 * behind the lease are here now; 0 is a miss. KVC_E_DEADLINE: not yet. It is told once, then
 * KVC_E_UNKNOWN. lease.fetch 0 is KVC_OK, and no blocks.
 */
KVC_API kvc_status kvc_remote(kvc_client *client, uint64_t fetch, uint32_t ms, uint32_t *blocks);
/* It is not wanted any more. What is on its way may still come. */
KVC_API kvc_status kvc_decline(kvc_client *client, uint64_t fetch);
/* The same as kvc_lookup without a lease. */
KVC_API kvc_status kvc_probe(kvc_client *client, const kvc_part *parts, uint32_t n_parts,
                             const uint8_t *keys, uint32_t n_keys, uint32_t *blocks);
KVC_API kvc_status kvc_extend(kvc_client *client, uint64_t lease, uint32_t ms, uint32_t *granted);
/* Idempotent. A load that is open keeps its blocks. */
KVC_API kvc_status kvc_release(kvc_client *client, uint64_t lease);
/* Takes over one part of a lease that another session of the tenant made, by its token. */
KVC_API kvc_status kvc_adopt(kvc_client *client, const uint8_t token[KVC_TOKEN_BYTES],
                             kvc_part part, uint32_t ms, kvc_lease *lease);

/* Loads. */

typedef struct kvc_load_args {
    uint64_t lease;
    kvc_part part;
    uint32_t first, count;  /* blocks of the lease */
    const uint32_t *blocks; /* count block ids of the worker, the destinations: distinct, or
                               KVC_NO_BLOCK */
    void *stream;           /* cudaStream_t; NULL on the host device */
    int no_verify;          /* do not compare checksums */
    uint8_t *valid; /* count bytes, or NULL: 1 where the destination holds the key's bytes */
    uint64_t *load; /* NULL: kvc_load waits until the copies are over and judged; else it names the
                       load for kvc_load_result and does not wait */
    uint32_t first_slice, n_slices; /* n_slices 0: all from the first */
    uint64_t *sums; /* for loads by slices: count sums that are 0 at first, or NULL */
    int release;    /* ends the lease as kvc_release does, whatever the load comes to */
} kvc_load_args;

/*
 * Copies leased blocks into the worker's. On the host device the bytes are there when it returns;
 * on a GPU they are for whatever comes later on the stream. What is computed from them must not be
 * used before they are known to be valid: from this call's return, or with `load` from
 * kvc_load_result. A stream that is being captured into a graph is refused (KVC_E_BUSY); a capture
 * of another stream is not disturbed, in whatever mode it was begun.
 *
 * KVC_OK: all are valid. KVC_E_CHECKSUM: some did not match; valid[] (set on this too) says which
 * are good, the others' contents are undefined and the daemon has been told. More than KVC_KEYS_MAX
 * blocks are split. On any other error no destination block that valid[] does not mark may be used.
 *
 * With `release` the lease is over when this returns, and kvc_release need not be called, whatever
 * has become of the load; but not if it was refused for its arguments before the daemon was asked.
 *
 * By slices: several calls load ranges of slices, each of which has arrived when its copies have,
 * so that a layer can be computed while the next ones are loaded. Checksums are of whole blocks.
 * With sums, kept by the caller until the last call was judged, every slice must come once and the
 * last one last; judging that compares, and until then valid[] says only that the copy was made.
 * Without sums nothing is compared.
 *
 * Of a part that the daemon copies it returns when the bytes are there. No stream is made to wait
 * for the daemon: one that waits for an event which a process has recorded that is killed before
 * the event waits for ever, whatever is done with the event (driver 580).
 *
 * Of such a part KVC_E_DEADLINE says that the bytes did not come within load_ms,
 * that the load was cancelled and that nothing writes to the destinations any more. KVC_E_BUSY (the
 * daemon did not even answer to that) and KVC_E_DISCONNECTED or KVC_E_PROTOCOL (it may not know
 * yet) leave a copy that may still run: destinations must not be reused before kvc_suspend, or
 * after a lost session kvc_reconnect, has returned KVC_OK, or the daemon's process is gone.
 * no_verify means nothing there, and stream only with a GPU.
 */
KVC_API kvc_status kvc_load(kvc_client *client, const kvc_load_args *args);

/*
 * Waits at most ms (0: only looks) until the copies of a load are over and judges them, as kvc_load
 * without `load` does: KVC_OK or KVC_E_CHECKSUM, and valid[] (one byte a block of the load, or
 * NULL). KVC_E_DEADLINE: not yet. A load is judged once, then it is KVC_E_UNKNOWN, as are those of
 * no blocks. At most 64 packets' worth of loads are under way (else kvc_load says KVC_E_BUSY); the
 * oldest that is over and was not asked for makes room. 0, the name of loads that were over when
 * kvc_load returned (the daemon copied), is KVC_OK. It needs no connection.
 */
KVC_API kvc_status kvc_load_result(kvc_client *client, uint64_t load, uint32_t ms, uint8_t *valid);

/* Saves. */

typedef enum kvc_key_state {
    KVC_KEY_HIT = 0,     /* there already, or earlier in this very save */
    KVC_KEY_SAVED = 1,   /* copied; published on proof */
    KVC_KEY_PENDING = 2, /* another save is filling it */
    KVC_KEY_SKIPPED = 3, /* no room, or KVC_NO_BLOCK */
} kvc_key_state;

typedef struct kvc_save_entry {
    kvc_part part;
    const uint8_t *keys;
    const uint32_t *blocks; /* the worker's block ids, one a key; KVC_NO_BLOCK leaves it out */
    uint32_t n_keys;
    uint8_t *states; /* n_keys, or NULL: kvc_key_state of each */
} kvc_save_entry;

typedef struct kvc_save_args {
    const kvc_save_entry *entries;
    uint32_t n_entries;
    void *stream;                   /* cudaStream_t; NULL on the host device */
    int no_checksums;               /* blocks then do not survive an unclean restart */
    uint32_t first_slice, n_slices; /* of every entry; n_slices 0: all from the first */
    uint64_t more_of;               /* more slices of that save; 0: a new one */
    int to_host;                    /* into the host tier; see below */
    int no_wait;                    /* nobody waits for room that is being made, some 1 ms */
} kvc_save_args;

/*
 * Copies the blocks that are missing. It may wait save_ms for the daemon's answer, then gives the
 * save up as a whole (KVC_E_DEADLINE). The source blocks may be overwritten by whatever comes later
 * on the stream, also of a call that failed: some of its copies may be there; on the host device,
 * when it returns. *save, if not NULL, names the save for kvc_wait and kvc_cancel; it is 0 when
 * there was nothing to copy. Total keys over KVC_KEYS_MAX: KVC_E_LIMIT, the caller splits at a
 * prefix.
 *
 * New blocks go to the GPU tier. Where one step saves more than that tier holds, the rest is
 * KVC_KEY_SKIPPED: those keys can be asked for again with to_host, which takes slots of the host
 * tier only and waits for none of them. Such copies are as slow as the bus of the GPU: they belong
 * on a stream of their own, which computing does not wait for but before it overwrites their
 * blocks. With no_wait, what is skipped may have room a moment later. Of saves by slices the first
 * call says both.
 *
 * By slices, as the forward pass goes from layer to layer: the first call names some slices of its
 * entries, and must be given save; further calls name others, each slice once, with the same
 * entries and more_of. Keys are assigned by the first call for all of them, pending for everybody
 * else until the last slice is there, and then published. If the first call gives save 0, there is
 * nothing to copy and no further call to make. All calls are one save: whatever fails, or
 * KVC_E_BUSY in one of them (no completion word is free, or too many of the daemon's copies have
 * not ended), it is never published; kvc_cancel ends it.
 *
 * Of parts that the daemon copies (all of them, or none): save must not be NULL, KVC_KEY_SAVED
 * means that a copy was started, and the source blocks must stay as they are until the save has
 * ended. *save is set on KVC_E_DEADLINE too, if it is not 0: the save was cancelled, but a copy of
 * it may run, and kvc_wait tells when it does not. With more_of it is that save, whatever happens.
 */
KVC_API kvc_status kvc_save(kvc_client *client, const kvc_save_args *args, uint64_t *save);

typedef struct kvc_outcome {
    kvc_status status; /* KVC_OK: every block that was copied is published */
    uint32_t published, dropped;
} kvc_outcome;

/*
 * Waits until the save has ended, at most ms (0: only looks); KVC_E_DEADLINE if it has not. KVC_OK
 * says that it has and outcome->status how, KVC_E_DISCONNECTED if its session broke before that was
 * known. A save can be waited for once; KVC_E_UNKNOWN afterwards. A client keeps the outcome of its
 * last thousand saves. When it has ended the source blocks of a save by the daemon are free.
 */
KVC_API kvc_status kvc_wait(kvc_client *client, uint64_t save, uint32_t ms, kvc_outcome *outcome);
/* Ends a save: what is published stays, the rest is dropped. Answers when its copies have ended. */
KVC_API kvc_status kvc_cancel(kvc_client *client, uint64_t save, uint32_t ms, kvc_outcome *outcome);
/* Tells the daemon that everything this session enqueued has finished (after the caller's own
 * synchronise): its unproved saves end, and their slots are free at once. */
KVC_API kvc_status kvc_drain(kvc_client *client);

/* Flushes and pins: workers and schedulers, for parts that they have registered. */

/*
 * Drops everything of the part's namespace, in all of its parts and for every session of the tenant
 * (new weights; reset of a prefix cache). Leases end, open loads run to their end, and nothing that
 * is being saved is published after it. This client's parts of the namespace go on at once; others
 * are told KVC_E_STALE and register again. *blocks (may be NULL): how many were dropped.
 */
KVC_API kvc_status kvc_flush(kvc_client *client, kvc_part part, uint64_t *blocks);
/* Drops the blocks of these keys, of this part only; saves that are filling one of them end. */
KVC_API kvc_status kvc_flush_keys(kvc_client *client, kvc_part part, const uint8_t *keys,
                                  uint32_t n_keys, uint64_t *blocks);

/*
 * Keeps the blocks of those keys that are there from being evicted, for so many seconds from now
 * (0: KVC_PIN_SECONDS_DEFAULT), whoever comes and goes meanwhile: a system prompt, say. Pinning
 * again sets the time anew. KVC_E_NO_ROOM when more than half of the daemon's memory would be
 * pinned. *pinned (may be NULL): how many of the keys were there.
 */
KVC_API kvc_status kvc_pin(kvc_client *client, kvc_part part, const uint8_t *keys, uint32_t n_keys,
                           uint32_t seconds, uint32_t *pinned);
KVC_API kvc_status kvc_unpin(kvc_client *client, kvc_part part, const uint8_t *keys,
                             uint32_t n_keys, uint32_t *unpinned);

/*
 * For parts that the daemon copies: waits, at most ms, until nothing of the daemon reads or writes
 * the part's memory, and keeps it so: saves and loads are refused with KVC_E_BUSY until kvc_resume.
 * For engines that give their KV memory up for a while, or do not know what still runs. Other
 * parts: waits until the copies that were enqueued on a GPU are over, and refuses nothing; on the
 * host nothing runs outside calls. KVC_E_DEADLINE: something does run; ask again; until
 * it has ended kvc_resume is refused with KVC_E_BUSY.
 */
KVC_API kvc_status kvc_suspend(kvc_client *client, kvc_part part, uint32_t ms);
KVC_API kvc_status kvc_resume(kvc_client *client, kvc_part part);

/* Statistics: any role. */

/* name: "tiers.gpu.used_bytes", "hits.host", ...: a constant. Times, whose names end in _us, are in
 * microseconds; boot_epoch names the daemon's start. */
typedef struct kvc_figure {
    const char *name;
    uint64_t value;
} kvc_figure;

/* What the daemon counts: the first `max` of its figures into figures[]; *n: how many there are. A
 * later library may know more; what the daemon is too old to tell is not among them. */
KVC_API kvc_status kvc_figures(kvc_client *client, kvc_figure *figures, uint32_t max, uint32_t *n);

#ifdef __cplusplus
}
#endif

#endif
