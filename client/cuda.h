/*
 * The worker's GPU: the driver, the primary context and nothing beside it, addresses for the
 * daemon's memory, and what copies need on the device. Opened when a daemon has a GPU; with it a
 * client uses one GPU, that of the context which is current then, else the first.
 *
 * The context is current only inside of a call here (cuda_enter, cuda_leave). There, what the
 * thread or another one may be capturing is nothing that these calls could harm: they touch no
 * captured stream, and the driver, which would else end that capture with an error, is told so.
 * Nothing here may run in a forked child.
 */
#ifndef KVC_CLIENT_CUDA_H
#define KVC_CLIENT_CUDA_H

#include <stdbool.h>

#include "kernels/cuda_driver.h"
#include "proto/limits.h"

#define CUDA_LANES KVC_PAGE_GATES /* streams that are told apart; more share */

/*
 * What launches on one stream share. Streams are named by their caller's handles, which may be
 * given to another stream later: so each call first has its stream wait for the lane's event.
 */
struct cuda_lane {
    void *stream;
    bool used;
    void *event; /* behind the last call on the stream */
    uint64_t scratch;
    uint64_t last_use;
};

struct copy_gate;

struct cuda {
    struct cuda_driver driver;
    bool has_kernels; /* pack can be used; else only the daemon copies */
    struct pack_cuda pack;
    void *context;
    uint32_t entered; /* times */
    int capture_mode; /* of the thread outside; -1: as it is here */
    int ordinal;
    uint8_t uuid[KVC_UUID_BYTES];
    bool registers_readonly;
    void *stream; /* the library's own, for what is not in the order of a caller's */
    struct cuda_lane lanes[CUDA_LANES];
    uint64_t uses;
    uint64_t host_base, host_bytes; /* of the daemon's host memory here */
    uint64_t page;                  /* the completion page; 0: none */
    uint64_t gates;                 /* numbers that were written into gates */
    bool reaches_peers;             /* memory of another GPU has been mapped */
};

/* KVC_E_NO_DEVICE, KVC_E_UNSUPPORTED or KVC_E_DEVICE with a sentence in why. */
kvc_status cuda_open(struct cuda **cuda, char why[CUDA_WHY_MAX]);
/* After cuda_drain. NULL is fine. inherited: in a forked child, where only memory is freed. */
void cuda_close(struct cuda *cuda, bool inherited);

kvc_status cuda_enter(struct cuda *cuda);
void cuda_leave(struct cuda *cuda);

/* Waits until all that was enqueued with this has ended: before addresses go away. */
void cuda_drain(struct cuda *cuda);
bool cuda_is_drained(struct cuda *cuda);

/* Addresses: of the daemon's GPU memory, and host memory that kernels then may touch. */
kvc_status cuda_reserve(struct cuda *cuda, uint64_t bytes, uint8_t **base);
void cuda_unreserve(struct cuda *cuda, uint8_t *base, uint64_t bytes);
/* The descriptor stays the caller's, and may be closed. */
kvc_status cuda_map(struct cuda *cuda, uint8_t *at, uint64_t bytes, int fd, bool writable);
void cuda_unmap(struct cuda *cuda, uint8_t *at, uint64_t bytes);
/* Memory that comes as a legacy handle: at least so many bytes, anywhere. */
kvc_status cuda_open_handle(struct cuda *cuda, const uint8_t handle[CUDA_IPC_BYTES], uint64_t bytes,
                            uint8_t **at);
void cuda_close_handle(struct cuda *cuda, uint8_t *at);
/* The completion page, registered; NULL: there is none any more. */
void cuda_know_page(struct cuda *cuda, const uint8_t *page);
/* Where the host tier's addresses are: copies to it take few thread blocks. */
void cuda_know_host(struct cuda *cuda, const uint8_t *base, uint64_t bytes);
kvc_status cuda_register(struct cuda *cuda, uint8_t *at, uint64_t bytes, bool writable);
void cuda_unregister(struct cuda *cuda, uint8_t *at);

/* Memory that the daemon may copy from and to: an allocation, or a mapped piece of one. */
struct cuda_piece {
    uint64_t at, bytes;
    bool legacy; /* an allocation that has a handle and no descriptor */
};
/* The one that an address lies in; why: a sentence. cuda_lend.c, as is what follows. */
kvc_status cuda_find_piece(struct cuda *cuda, uint64_t address, struct cuda_piece *piece,
                           const char **why);
/* A descriptor, the caller's, or -1 and a handle. KVC_E_UNSUPPORTED: it is not to be shared. */
kvc_status cuda_export(struct cuda *cuda, uint64_t at, bool legacy, int *fd,
                       uint8_t handle[CUDA_IPC_BYTES]);
/* Has the stream write a number into the lane's gate of the completion page. */
kvc_status cuda_write_gate(struct cuda *cuda, const struct cuda_lane *lane, void *stream,
                           struct copy_gate *gate);

/* Whether kernels on this GPU may touch what is at the address; why not, in words, or NULL. */
const char *cuda_judge(struct cuda *cuda, const void *address);

#endif
