/*
 * The secret that daemons which trust each other share: read from a file, and proved by HMAC-SHA256
 * over what both sides said in their HELLOs, so that neither learns it and no proof serves twice.
 */
#ifndef KVC_PEER_SECRET_H
#define KVC_PEER_SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/peer/message.h"

#define SECRET_BYTES_MIN 16u
#define SECRET_BYTES_MAX 256u

struct secret {
    size_t len; /* 0: there is none */
    uint8_t bytes[SECRET_BYTES_MAX];
};

enum secret_side { SECRET_ASKER, SECRET_SOURCE };

/*
 * Reads a file of one line. false, with a sentence: it is not there, is empty, too short or too
 * long, or others than its owner may read it.
 */
bool secret_read(const char *path, struct secret *secret, char *why, size_t size);
void secret_forget(struct secret *secret);

/* What a side must send to prove that it knows the secret, given both HELLO bodies. */
struct secret_talk {
    const uint8_t *asker_hello, *source_hello; /* MESSAGE_HELLO_BYTES each */
};
void secret_prove(const struct secret *secret, enum secret_side side,
                  const struct secret_talk *talk, uint8_t mac[MESSAGE_MAC_BYTES]);
/* Constant in time, whatever differs. */
bool secret_is_proof(const struct secret *secret, enum secret_side side,
                     const struct secret_talk *talk, const uint8_t mac[MESSAGE_MAC_BYTES]);

#endif
