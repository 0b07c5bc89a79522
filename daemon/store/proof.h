/*
 * Proof: words that have arrived, and what stands for one (never enqueued, drained, gone).
 */
#ifndef KVC_STORE_PROOF_H
#define KVC_STORE_PROOF_H

#include "daemon/store/owner.h"

/* Waits for a word, from now on. */
void proof_watch(struct store *store, struct word *word);

/* Looks at all words of an owner; whether any has arrived. */
bool proof_look(struct owner *owner);

/* The same, and at those of others that are waited for longest, a bounded number of them. */
bool proof_look_ahead(struct owner *owner);

/* Looks at the words that are due. */
void proof_tick(struct store *store, uint64_t now);
uint64_t proof_next_wake(const struct store *store); /* clock_us */

/*
 * Nothing of what the owner was told can be written or read any more: words that are still owed
 * count as arrived, but publish nothing, since what they stand for is not known to be complete.
 */
void proof_waive(struct owner *owner);

/* When the word that is waited for longest was issued; UINT64_MAX: none is waited for. */
uint64_t proof_oldest(const struct store *store);

#endif
