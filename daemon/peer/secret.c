#ifdef KVC_UCX /* without it there are no peers to prove anything to */

#include "daemon/peer/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/peer/names.h"

static bool judge(const char *path, const struct stat *st, char *why, size_t size)
{
    if (!S_ISREG(st->st_mode))
        return peer_explain(why, size, "%s is no file", path);
    if (st->st_mode & 077)
        return peer_explain(why, size, "%s can be read or written by others than its owner", path);
    return true;
}

static bool read_all(const char *path, int fd, struct secret *secret, char *why, size_t size)
{
    char text[SECRET_BYTES_MAX + 2];
    ssize_t n = read(fd, text, sizeof(text));
    bool ok = false;

    if (n < 0) {
        peer_explain(why, size, "%s: %s", path, strerror(errno));
        goto wipe;
    }
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r'))
        n--;
    if (n < (ssize_t)SECRET_BYTES_MIN || n > (ssize_t)SECRET_BYTES_MAX) {
        peer_explain(why, size, "%s: a secret has %u to %u bytes", path, SECRET_BYTES_MIN,
                     SECRET_BYTES_MAX);
        goto wipe;
    }
    memcpy(secret->bytes, text, (size_t)n);
    secret->len = (size_t)n;
    ok = true;
wipe:
    explicit_bzero(text, sizeof(text));
    return ok;
}

bool secret_read(const char *path, struct secret *secret, char *why, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    bool ok;

    if (fd < 0)
        return peer_explain(why, size, "%s: %s", path, strerror(errno));
    ok = fstat(fd, &st) == 0 ? judge(path, &st, why, size)
                             : peer_explain(why, size, "%s: %s", path, strerror(errno));
    ok = ok && read_all(path, fd, secret, why, size);
    close(fd);
    return ok;
}

void secret_forget(struct secret *secret)
{
    explicit_bzero(secret, sizeof(*secret));
}

void secret_prove(const struct secret *secret, enum secret_side side,
                  const struct secret_talk *talk, uint8_t mac[MESSAGE_MAC_BYTES])
{
    static const char *const labels[] = {
        [SECRET_ASKER] = "kvcached peer 1 asker",
        [SECRET_SOURCE] = "kvcached peer 1 source",
    };
    struct hmac_sha256_ctx hmac;

    hmac_sha256_set_key(&hmac, secret->len, secret->bytes);
    hmac_sha256_update(&hmac, strlen(labels[side]) + 1, (const uint8_t *)labels[side]);
    hmac_sha256_update(&hmac, MESSAGE_HELLO_BYTES, talk->asker_hello);
    hmac_sha256_update(&hmac, MESSAGE_HELLO_BYTES, talk->source_hello);
    hmac_sha256_digest(&hmac, MESSAGE_MAC_BYTES, mac);
    explicit_bzero(&hmac, sizeof(hmac));
}

bool secret_is_proof(const struct secret *secret, enum secret_side side,
                     const struct secret_talk *talk, const uint8_t mac[MESSAGE_MAC_BYTES])
{
    uint8_t right[MESSAGE_MAC_BYTES];
    bool equal;

    secret_prove(secret, side, talk, right);
    equal = memeql_sec(right, mac, sizeof(right)) == 1;
    explicit_bzero(right, sizeof(right));
    return equal;
}

#endif
