// A worker without the library, on top of talk.h: it has a part and a completion page, has mapped
// (and acknowledged) all extents, and copies nothing: for tests of what the daemon does with words,
// not with bytes. Functions fail the test when something is not as they say.
#ifndef KVC_TESTS_LIB_TALKWORKER_H
#define KVC_TESTS_LIB_TALKWORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/lib/talk.h"

struct talkworker {
    int sock;
    uint8_t *page;
    uint64_t session;
    uint8_t secret[KVC_SECRET_BYTES];
    uint32_t part, epoch;
};

// Slots are slot_bytes, one slice. All workers of a daemon with equal slots share their part.
void talkworker_open(struct talkworker *w, const char *socket, uint32_t slot_bytes);
void talkworker_close(struct talkworker *w);

// Sends a SAVE of n keys that are numbered from `first`; its sequence number.
uint32_t talkworker_send_save(struct talkworker *w, uint32_t first, uint32_t n, bool notify);
Kvcache__SaveReply *talkworker_save_reply(struct talkworker *w, uint32_t seq);
// Both in one.
Kvcache__SaveReply *talkworker_save(struct talkworker *w, uint32_t first, uint32_t n, bool notify);

// Writes a word of the page, as a copy that has ended does.
void talkworker_prove(struct talkworker *w, uint32_t word, uint64_t number);
// All words of a save.
void talkworker_prove_save(struct talkworker *w, const Kvcache__SaveReply *reply);

// How many of n keys from `first` are hits; leases nothing.
uint32_t talkworker_hits(struct talkworker *w, uint32_t first, uint32_t n);

// Waits for the notice SAVE_DONE.
Kvcache__SaveDone *talkworker_done(struct talkworker *w);

Kvcache__StatsReply *talkworker_stats(struct talkworker *w);

#endif
