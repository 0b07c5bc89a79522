/*
 * Every limit and default of the protocol, once. PROTOCOL.md repeats them with their reasons; a
 * test compares the two.
 *
 * proto/ is the contract between daemon, library and tools: packets, limits, status codes, keys.
 * It includes nothing of the project but itself; the door is wire.h for bytes on a socket and
 * key.h for names of blocks.
 */
#ifndef KVC_LIMITS_H
#define KVC_LIMITS_H

/* Packets. A packet is one message: header, then a protobuf body. */
#define KVC_WIRE_HEADER_BYTES  16u
#define KVC_WIRE_BODY_MAX      (64u * 1024u)
#define KVC_WIRE_PACKET_MAX    (KVC_WIRE_HEADER_BYTES + KVC_WIRE_BODY_MAX)
#define KVC_WIRE_FDS_MAX       64u
#define KVC_WIRE_UNPACK_BUDGET (1024u * 1024u) /* bytes that unpacking one body may allocate */
#define KVC_WIRE_FIELDS_MAX    2048u /* fields of a body; a message inside it counts eight more */

/* Names. */
#define KVC_KEY_BYTES         16u
#define KVC_NAMESPACE_BYTES   32u
#define KVC_FINGERPRINT_BYTES 16u
#define KVC_SECRET_BYTES      16u
#define KVC_TOKEN_BYTES       16u
#define KVC_UUID_BYTES        16u
#define KVC_NAME_MAX          63u /* tenant and session names, bytes without the final NUL */

/* Requests. */
#define KVC_KEYS_MAX       1024u  /* keys in a request, all entries or parts together */
#define KVC_ENTRIES_MAX    64u    /* entries of a save */
#define KVC_PARTS_MAX      64u    /* parts of a lookup, and of a session */
#define KVC_SLICES_MAX     1024u  /* slices of a layout */
#define KVC_LEASE_KEYS_MAX 65536u /* blocks a part holds in one lease */

/* Layouts. */
#define KVC_SLICE_ALIGN      16u          /* slices start at multiples of this in a slot */
#define KVC_SLOT_ALIGN       512u         /* slots are multiples of this */
#define KVC_SLOT_BYTES_MIN   4096u        /* the smallest slot; a smaller block is padded to it */
#define KVC_SLICE_BYTES_MAX  (1u << 30)   /* one slice of one block */
#define KVC_BLOCK_BYTES_MAX  (1ull << 32) /* one block */
#define KVC_BLOCK_TOKENS_MAX (1u << 20)

/* Chunks: what one completion word proves. */
#define KVC_CHUNK_BLOCKS 64u
#define KVC_CHUNK_BYTES  (16ull << 20) /* useful bytes; a larger block is a chunk of its own */

/* Extents. */
#define KVC_EXTENT_BYTES_MIN (2ull << 20)
#define KVC_EXTENT_BYTES_MAX (1ull << 30)
/* Wanted: the extent size is a budget divided by this, clamped. */
#define KVC_EXTENTS_PER_TIER 64u

/* Completion page: entries of one session, see PROTOCOL.md. */
#define KVC_PAGE_WORDS       256u
#define KVC_PAGE_STRIDE      1024u /* bytes from one entry to the next */
#define KVC_PAGE_CELLS       64u   /* checksum cells at the start of an entry */
#define KVC_PAGE_WORD_OFFSET 512u  /* the word, behind the cells */
#define KVC_PAGE_GATES       16u   /* entries that have a gate besides */
#define KVC_PAGE_GATE_OFFSET 520u  /* the gate, behind the word */

/* Times, milliseconds. */
#define KVC_LEASE_MS_DEFAULT    30000u
#define KVC_LEASE_MS_MAX        600000u
#define KVC_PIN_SECONDS_DEFAULT 3600u
#define KVC_PIN_SECONDS_MAX     604800u
#define KVC_SAVE_PROOF_MS       30000u  /* an unproved save is aborted after this */
#define KVC_SAVE_ROOM_MS        1u      /* a save into a full tier waits for room this long */
#define KVC_SAVE_REPLY_MS       2u      /* the library waits for a save's reply this long */
#define KVC_POLL_MS             1u      /* the daemon looks at young words this often */
#define KVC_POLL_OLD_MS         100u    /* ... and at words older than a second this often */
#define KVC_PROMOTION_MS        60000u  /* two hits on the host tier within this promote a block */
#define KVC_NAMESPACE_IDLE_MS   300000u /* unused for so long, a model has no share of a tier */
#define KVC_HELLO_MS            10000u  /* a connection without a HELLO is cut after this */
#define KVC_REMOTE_MS_MAX       60000u  /* a lookup asks peers for at most this long */
#define KVC_WATCH_MS_MAX        60000u  /* a WATCH waits at most this long */
#define KVC_DRAIN_MS            5000u   /* SIGTERM waits this long for what is in flight */

/* A connection's queue of unsent replies. */
#define KVC_OUT_STOP_BYTES (256u * 1024u)  /* the daemon stops reading from it */
#define KVC_OUT_CUT_BYTES  (1024u * 1024u) /* ... and cuts it */
#define KVC_OUT_CUT_MS     5000u           /* ... also when nothing left for this long */

/* Events of blocks. */
#define KVC_EVENTS_MAX  512u   /* in a reply */
#define KVC_EVENTS_KEPT 65536u /* by the daemon, of all tenants */

/* What one tenant may have of the tables that all share: a quarter of each. */
#define KVC_TENANT_SESSIONS_MAX   1024u
#define KVC_TENANT_NAMESPACES_MAX 1024u
#define KVC_TENANT_LAYOUTS_MAX    256u
#define KVC_TENANT_PARTS_MAX      2048u

/* Objects of one session. */
#define KVC_SESSION_LEASES_MAX       4096u
#define KVC_SESSION_LEASE_BLOCKS_MAX (1u << 21) /* in all of its leases, all parts together */
#define KVC_SESSION_SAVES_MAX        256u
#define KVC_SESSION_ABORTS_MAX       1024u /* whose answers wait for words or copies */
/* Fetches from peers that were not asked for or are not over. */
#define KVC_SESSION_REMOTES_MAX     64u
#define KVC_SESSION_REFUSED_FDS_MAX 1024u /* descriptors with requests that were refused */

/* Workers' own memory, for copies by the daemon. */
#define KVC_SESSION_REGIONS_MAX 64u
#define KVC_SESSION_LOADS_MAX   256u /* loads by the daemon that have not ended */
/* Blocks of calls of saves by the daemon that have not ended, and 16 for each call. */
#define KVC_SESSION_COPIES_MAX     (1u << 20)
#define KVC_COPY_CALL_BLOCKS       16u
#define KVC_SESSION_PIECES_MAX     1024u  /* pieces of all regions of a session */
#define KVC_SESSION_GPU_PIECES_MAX 16384u /* the same on a GPU, for 320 GiB in pieces of 20 MiB */
#define KVC_PIECES_MAX             16384u /* ... of all sessions: a quarter of Linux's mappings */
#define KVC_REGION_BLOCKS_MAX      (1u << 24)

#endif
