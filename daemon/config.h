/*
 * Settings of the daemon. One row of a table per option (config.c) gives its name, kind, range,
 * default, whether it can change at run time, and its line of help; configuration file,
 * environment, command line, --help and `kvcachectl config` are all read from those rows.
 */
#ifndef KVC_DAEMON_CONFIG_H
#define KVC_DAEMON_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/config_access.h"
#include "daemon/config_quota.h"
#include "daemon/config_value.h"
#include "daemon/peer/names.h"

#define CONFIG_TEXT_MAX 256u
#define CONFIG_WHY_MAX  640u
#define CONFIG_ROWS_MAX 48u /* of the table of options */

/* Where a value comes from; a later one in this order wins. */
enum config_origin {
    CONFIG_DEFAULT,
    CONFIG_FILE,
    CONFIG_ENVIRONMENT, /* KVCACHED_GPU_BYTES for gpu-bytes */
    CONFIG_ARGUMENT,    /* --gpu-bytes */
    CONFIG_RUNTIME,     /* kvcachectl config set; gone at the next reload */
};

enum config_device { CONFIG_DEVICE_AUTO, CONFIG_DEVICE_HOST, CONFIG_DEVICE_CUDA };

struct config {
    char sockets[CONFIG_SOCKETS_TEXT_MAX], allow[CONFIG_ALLOW_TEXT_MAX];
    uint64_t socket_mode;
    uint64_t device; /* enum config_device */
    char gpus[CONFIG_TEXT_MAX];
    uint64_t gpu_memory;            /* of device_cuda_choice */
    uint64_t gpu_bytes, host_bytes; /* the first of each GPU */
    uint64_t log_level;             /* enum log_level */
    uint64_t lease_ms, save_proof_ms, promotion_ms, drain_ms;
    uint64_t clean_low, clean_high; /* per mille */
    uint64_t moving_bytes;
    uint64_t copy_thread_blocks;
    char tenant_shares[CONFIG_TEXT_MAX];
    char namespace_quota[CONFIG_QUOTA_TEXT_MAX];
    char peers[PEER_NAMES_TEXT_MAX];
    char peer_listen[CONFIG_TEXT_MAX], peer_secret_file[CONFIG_TEXT_MAX];
    char peer_tenant[CONFIG_TEXT_MAX];
    uint64_t transfer; /* enum peers_transfer */
    char ucx[CONFIG_TEXT_MAX];
    char directory[CONFIG_TEXT_MAX];
    uint64_t directory_ms;
    uint64_t peer_silence_ms, peer_bytes, peers_bytes;
    char metrics[CONFIG_TEXT_MAX];
    uint8_t origins[CONFIG_ROWS_MAX];
};

/* Every option at its default. */
void config_init(struct config *config);

/* Sets one option from text. false: why (CONFIG_WHY_MAX bytes) says in one line what is wrong. */
bool config_set(struct config *config, const char *name, const char *value,
                enum config_origin origin, char *why);

/* What no option shows by itself; false, and why. */
bool config_check(const struct config *config, char *why);

/* Whether an option may be given several times in one place; each adds to those before. */
bool config_is_list(size_t i);

/* One option as it stands. value lives as long as the entry. */
struct config_entry {
    const char *name, *origin;
    const char *value;
    bool runtime; /* can change without a restart */
    bool tells;   /* of tenants, hence for operators only */
    char text[VALUE_TEXT_MAX];
};
size_t config_count(void);
void config_get(const struct config *config, size_t i, struct config_entry *entry);
/* Its place among the rows; config_count() when there is none. */
size_t config_find(const char *name);

/*
 * Takes over from fresh what can change at run time. differing, of size bytes, gets the names of
 * the others that differ, with commas.
 */
void config_adopt(struct config *config, const struct config *fresh, char *differing, size_t size);

/* Changes one option of a running daemon: only those that can, and only to what config_check
 * allows. */
bool config_change(struct config *config, const char *name, const char *value, char *why);

void config_help(FILE *out);

/* In one line, with the nearest name if one is near. Returns false. */
bool config_unknown(const char *what, const char *name, char *why);
bool config_explain(char *why, const char *format, ...) __attribute__((format(printf, 2, 3)));
#ifdef KVC_LINT /* of one file at a time, which does not see that it is always false */
#define config_explain(...) ((config_explain)(__VA_ARGS__), false)
#endif

#endif
