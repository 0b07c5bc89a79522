// A worker without the library that lends memory to the daemon: regions as packets, right or wrong,
// and saves from them. One part of TALK_REGION_SLICES slices.
#ifndef KVC_TESTS_LIB_TALK_REGION_H
#define KVC_TESTS_LIB_TALK_REGION_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/kvcache.pb-c.h"
#include "proto/limits.h"
#include "proto/status.h"

#define TALK_REGION_SLICES 3u
#define TALK_REGION_BLOCKS 8u
#define TALK_REGION_STRIDE 4096u // of every slice; they are of 4096, 1000 and 16 bytes
#define TALK_REGION_PIECE  (TALK_REGION_SLICES * TALK_REGION_BLOCKS * TALK_REGION_STRIDE)

struct talk_lender {
    int sock; // connected, HELLO said
    uint32_t part, epoch;
    Kvcache__RegionBegin shape; // of the next region
    uint32_t slice_pieces[KVC_SLICES_MAX];
    uint64_t slice_offsets[KVC_SLICES_MAX], slice_strides[KVC_SLICES_MAX];
};

void talk_lender_register(struct talk_lender *l, uint8_t namespace_);
// Connected, namespace 1 registered, and the shape of a good region; page as talk_hello's.
void talk_lender_open(struct talk_lender *l, const char *socket, Kvcache__Role role, int *page);

// A good region of one piece: a slice's blocks lie one behind the other.
void talk_region_shape(struct talk_lender *l);

// Memory that is called "test-region" in maps.
int talk_region_memfd(uint64_t bytes, int seals, bool pages);
int talk_region_good_memfd(void);

uint64_t talk_region_begin(struct talk_lender *l);
// Sends a PART of n pieces, all of one descriptor, kind, length and offset; its sequence number.
uint32_t talk_region_part(struct talk_lender *l, uint64_t region, uint32_t n, uint8_t kind,
                          uint64_t bytes, uint64_t offset, int fd, uint32_t n_fds);
void talk_region_add(struct talk_lender *l, uint64_t region, uint64_t bytes, uint64_t offset,
                     int fd);
// REGION_END, REGION_DROP, SUSPEND or RESUME: sent, or also answered.
uint32_t talk_region_send(struct talk_lender *l, uint16_t type, uint64_t region);
void talk_region_ask(struct talk_lender *l, uint16_t type, uint64_t region);
uint64_t talk_region_end(struct talk_lender *l, uint64_t region); // the one that stands
uint64_t talk_region_make(struct talk_lender *l, int fd);

// A save of one key from one block, with notify and checksums; good until the next call.
void talk_region_save(struct talk_lender *l, uint64_t region, uint8_t key, uint32_t block,
                      Kvcache__Save *m, Kvcache__SaveEntry *entry);

// The key is assigned; the save. Or refused.
uint64_t talk_region_save_key(struct talk_lender *l, uint64_t region, uint8_t key, uint32_t block);
void talk_region_save_refused(struct talk_lender *l, uint64_t region, uint32_t block,
                              kvc_status status, const char *field);
uint64_t talk_region_published(struct talk_lender *l);

#endif
