#include "client/ctl/columns.h"

#include <string.h>

static const struct column clients[] = {
    {"session", COLUMN_TEXT, NULL, "its name, a number"},
    {"pid", COLUMN_NUMBER, "PID", "of the process, as the daemon sees it"},
    {"uid", COLUMN_NUMBER, "UID", "of the process"},
    {"tenant", COLUMN_TEXT, "TENANT", "whose blocks it shares"},
    {"role", COLUMN_TEXT, "ROLE", "worker, reader, scheduler or operator"},
    {"name", COLUMN_TEXT, "NAME", "what it calls itself"},
    {"state", COLUMN_TEXT, "STATE", "connected, or ended and still owing proof of its writes"},
    {"connected_ms", COLUMN_MS, "SINCE", "since it connected"},
    {"requests", COLUMN_NUMBER, "REQUESTS", "that it has sent"},
    {"queued_bytes", COLUMN_BYTES, "UNREAD", "of replies that it has not read"},
    {"may_be", COLUMN_TEXT, NULL, "the roles that it may have"},
};

static const struct column namespaces[] = {
    {"namespace", COLUMN_DIGEST, "NAMESPACE", "its digest"},
    {"tenant", COLUMN_TEXT, "TENANT", "whose it is"},
    {"name", COLUMN_TEXT, "NAME", "of the model, for people"},
    {"epoch", COLUMN_NUMBER, NULL, "grows by one with each flush"},
    {"parts", COLUMN_NUMBER, "PARTS", "that were registered: KV cache groups of shards"},
    {"gpu_bytes", COLUMN_BYTES, "GPU", "of its slots in the gpu tier"},
    {"gpu_quota", COLUMN_BYTES, NULL, "its quota there"},
    {"gpu_share", COLUMN_BYTES, "SHARE", "what its family may have there before it gives first"},
    {"host_bytes", COLUMN_BYTES, "HOST", "of its slots in the host tier"},
    {"host_quota", COLUMN_BYTES, NULL, "its quota there"},
    {"host_share", COLUMN_BYTES, "SHARE", "what its family may have there before it gives first"},
    {"leased", COLUMN_NUMBER, "LEASED", "blocks that leases hold"},
    {"leases_quota", COLUMN_NUMBER, NULL, "how many they may hold"},
    {"gpu_hits", COLUMN_NUMBER, NULL, "blocks that lookups found in the gpu tier"},
    {"host_hits", COLUMN_NUMBER, NULL, "blocks that lookups found in the host tier"},
};

static const struct column layouts[] = {
    {"part", COLUMN_NUMBER, "PART", "its number"},
    {"namespace", COLUMN_DIGEST, "NAMESPACE", "the digest of its namespace"},
    {"tenant", COLUMN_TEXT, "TENANT", "whose it is"},
    {"name", COLUMN_TEXT, "NAME", "of the model, for people"},
    {"rule", COLUMN_TEXT, "RULE", "full, window or state: which blocks of a prefix a hit needs"},
    {"window", COLUMN_NUMBER, "WINDOW", "tokens, of the rule window; else 0"},
    {"block_tokens", COLUMN_NUMBER, "TOKENS", "of a block"},
    {"slices", COLUMN_NUMBER, NULL, "of a block: runs of bytes, one a layer and kind or so"},
    {"block_bytes", COLUMN_BYTES, "BLOCK", "of a block"},
    {"slot_bytes", COLUMN_BYTES, "SLOT", "of its place in a tier"},
    {"fingerprint", COLUMN_DIGEST, "FINGERPRINT", "of the layout: another one is a miss"},
};

static const struct column leases[] = {
    {"lease", COLUMN_TEXT, NULL, "its name, a number"},
    {"session", COLUMN_TEXT, NULL, "who holds it"},
    {"pid", COLUMN_NUMBER, "PID", "of that session"},
    {"tenant", COLUMN_TEXT, "TENANT", "of that session"},
    {"name", COLUMN_TEXT, "NAME", "of that session"},
    {"part", COLUMN_NUMBER, "PART", "the first that it covers"},
    {"parts", COLUMN_NUMBER, "PARTS", "that it covers"},
    {"blocks", COLUMN_NUMBER, "BLOCKS", "of each part: the length of the prefix"},
    {"ends_ms", COLUMN_MS, "ENDS IN", "until it ends by itself"},
};

static const struct column blocks[] = {
    {"key", COLUMN_TEXT, "KEY", "its name"},
    {"namespace", COLUMN_DIGEST, NULL, "the digest of its namespace"},
    {"tenant", COLUMN_TEXT, NULL, "whose it is"},
    {"part", COLUMN_NUMBER, "PART", "see kvcachectl layouts"},
    {"tier", COLUMN_TEXT, "TIER", "gpu, host or gpu+host"},
    {"state", COLUMN_TEXT, "STATE",
     "published; filling: a save writes it; moving: it is being copied to the other tier"},
    {"slot_bytes", COLUMN_BYTES, NULL, "that it takes in each tier"},
    {"idle_ms", COLUMN_MS, "IDLE", "since it was last used"},
    {"leases", COLUMN_NUMBER, "LEASES", "that hold it"},
    {"loads", COLUMN_NUMBER, NULL, "that read it now"},
    {"pinned", COLUMN_YES, NULL, "whether it is"},
    {"checked", COLUMN_YES, NULL, "whether it was saved with a checksum"},
};

static const struct column quarantine[] = {
    {"save", COLUMN_TEXT, NULL, "the name, a number, of the save that failed"},
    {"session", COLUMN_TEXT, NULL, "whose it was"},
    {"pid", COLUMN_NUMBER, "PID", "of that session"},
    {"tenant", COLUMN_TEXT, "TENANT", "of that session"},
    {"name", COLUMN_TEXT, "NAME", "of that session"},
    {"state", COLUMN_TEXT, "STATE", "connected or ended"},
    {"part", COLUMN_NUMBER, NULL, "see kvcachectl layouts"},
    {"slots", COLUMN_NUMBER, "SLOTS", "that wait for proof that nobody writes to them"},
    {"bytes", COLUMN_BYTES, "BYTES", "of those slots"},
    {"age_ms", COLUMN_MS, "AGE", "since the save failed"},
    {"reason", COLUMN_TEXT, "REASON", "why it failed"},
};

static const struct column extents[] = {
    {"tier", COLUMN_TEXT, "TIER", "gpu or host"},
    {"tenant", COLUMN_TEXT, "TENANT", "whose they are; empty: nobody's"},
    {"slot_bytes", COLUMN_BYTES, "SLOT", "the size of their slots; 0: not divided"},
    {"extents", COLUMN_NUMBER, "EXTENTS", "that are alike"},
    {"slots", COLUMN_NUMBER, "SLOTS", "in them"},
    {"used_slots", COLUMN_NUMBER, "USED", "of those slots"},
    {"state", COLUMN_TEXT, "STATE",
     "free, empty, used, resizing, leaving, unmapping (sessions have yet to) or lost"},
};

static const struct column peers[] = {
    {"peer", COLUMN_TEXT, "PEER", "its address"},
    {"way", COLUMN_TEXT, "WAY", "asks: it asks us; serves: we ask it"},
    {"tenant", COLUMN_TEXT, "TENANT", "whose blocks are shared with it"},
    {"state", COLUMN_TEXT, "STATE", "of the link"},
    {"mode", COLUMN_TEXT, "MODE", "how bytes travel: views or exact"},
    {"lanes", COLUMN_TEXT, "LANES", "transports that they travel by"},
    {"reason", COLUMN_TEXT, "REASON", "why in that mode"},
    {"epoch", COLUMN_NUMBER, NULL, "boot epoch of the other daemon"},
    {"batches", COLUMN_NUMBER, NULL, "of blocks that were fetched"},
    {"small_batches", COLUMN_NUMBER, NULL, "of them, in small views"},
    {"useful_bytes", COLUMN_BYTES, "USEFUL", "of blocks"},
    {"wire_bytes", COLUMN_BYTES, NULL, "that travelled for them"},
    {"registrations", COLUMN_NUMBER, NULL, "of memory with the transport"},
    {"dropped", COLUMN_NUMBER, NULL, "answers that came too late or were wrong"},
};

static const struct column config[] = {
    {"name", COLUMN_TEXT, "NAME", "of the setting, see kvcached.conf(5)"},
    {"value", COLUMN_TEXT, "VALUE", "as it is now"},
    {"origin", COLUMN_TEXT, "FROM", "where it is from"},
    {"changes", COLUMN_TEXT, "CHANGES", "now: while the daemon runs; restart: only with one"},
};

#define LIST(name)                                                                                 \
    {                                                                                              \
#name, name, sizeof(name) / sizeof((name)[0])                                              \
    }
static const struct columns lists[] = {
    LIST(clients),    LIST(namespaces), LIST(layouts), LIST(leases), LIST(blocks),
    LIST(quarantine), LIST(extents),    LIST(peers),   LIST(config),
};

const struct columns *columns_of(const char *list)
{
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        if (strcmp(lists[i].list, list) == 0)
            return &lists[i];
    return NULL;
}

const struct column *columns_find(const struct columns *columns, const char *name)
{
    for (size_t i = 0; columns && i < columns->n; i++)
        if (strcmp(columns->columns[i].name, name) == 0)
            return &columns->columns[i];
    return NULL;
}

const char *columns_json_type(const struct column *column)
{
    switch (column->type) {
    case COLUMN_NUMBER:
    case COLUMN_BYTES:
    case COLUMN_MS:
        return strstr(column->name, "_quota") ? "integer or null" : "integer";
    case COLUMN_YES:
        return "boolean";
    default:
        return "string";
    }
}
