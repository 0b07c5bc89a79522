/*
 * The daemon's memory in this process: a reserved range for each tier, in which extent i lies at
 * i * extent_bytes once it is mapped (but for those of a GPU that come as legacy handles, which lie
 * anywhere), and the completion page. A location in a reply is a tier and
 * an offset; map_at is the only way from one to an address, and gives none outside what is mapped.
 * With a GPU, the gpu tier's addresses are the GPU's, and what lies on the host is registered so
 * that kernels may touch it.
 *
 * Nothing of it is inherited by a forked child.
 */
#ifndef KVC_CLIENT_MAP_H
#define KVC_CLIENT_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "client/codec.h"
#include "proto/status.h"

enum map_extent_state {
    MAP_RESERVED, /* addresses without access */
    MAP_MAPPED,
    MAP_HOLE, /* the range has lost these addresses: they may be somebody else's */
};

struct cuda;

enum map_kind { MAP_MEMFD = 1, MAP_CUDA_FD = 2, MAP_CUDA_HANDLE = 3 }; /* MemoryKind */

struct map_tier {
    bool on_gpu;
    uint8_t *base; /* NULL: no such tier */
    uint64_t bytes, extent_bytes;
    uint32_t n_extents;
    uint8_t *states;  /* enum map_extent_state of each */
    uint8_t **opened; /* NULL, or where the driver put those that came as handles */
};

struct map {
    struct cuda *cuda; /* NULL: no GPU */
    struct map_tier tiers[CODEC_TIERS];
    uint32_t n_mapped;
    bool writable;
    uint8_t *page; /* NULL: none */
    uint32_t page_words, page_stride;
};

/*
 * Reserves the tiers of a hello reply and maps its page, whose fd stays the caller's; writable says
 * how extents will be mapped. cuda, which stays the caller's, is NULL on the host device. *what is
 * the field at fault on KVC_E_PROTOCOL (sizes that cannot be), KVC_E_MAP or KVC_E_NO_MEMORY. On
 * failure map is as empty as after map_close.
 */
kvc_status map_open(struct map *map, const struct codec_hello_reply *hello, int page_fd,
                    bool writable, struct cuda *cuda, const char **what);
/* Unmaps all, which no copy may be using; an empty map is fine. inherited: in a forked child, where
 * nothing is mapped. */
void map_close(struct map *map, bool inherited);

/*
 * Maps an extent (tier << 31 | index) from a descriptor, which stays the caller's. KVC_E_PROTOCOL
 * for an extent that the tier has not, a kind (enum map_kind) that is not its tier's, and for a
 * memfd that could take the memory away again: not one, too short, not sealed against shrinking.
 * One that is mapped already is left as it is.
 */
kvc_status map_extent(struct map *map, uint32_t extent, uint32_t kind, int fd, const char **what);
/* The same from a legacy handle of CODEC_HANDLE_BYTES. */
kvc_status map_open_extent(struct map *map, uint32_t extent, const uint8_t *handle,
                           const char **what);
kvc_status map_drop(struct map *map, uint32_t extent, const char **what);
bool map_has(const struct map *map, uint32_t extent);

/* The address of bytes at offset of a tier, or NULL unless all of them are mapped. */
uint8_t *map_at(const struct map *map, uint32_t tier, uint64_t offset, uint64_t bytes);

/* Entry i of the page: its cells, and its word. NULL when there is no such entry. */
uint64_t *map_cells(const struct map *map, uint32_t word);
uint64_t *map_word(const struct map *map, uint32_t word);

#endif
