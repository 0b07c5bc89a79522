/*
 * Bodies of packets: protobuf to plain structs and back. Protobuf types stop here. Requests are
 * unpacked into memory of a fixed budget, so that no body makes the daemon allocate; replies are
 * packed into one buffer of the codec's.
 */
#ifndef KVC_CONN_CODEC_H
#define KVC_CONN_CODEC_H

#include "daemon/conn/message.h"
#include "proto/status.h"
#include "proto/wire.h"

struct codec;

kvc_status codec_create(struct codec **codec);
void codec_destroy(struct codec *codec); /* NULL is fine */

/*
 * Decodes the body of a request type that has a body of its own. NULL, or a constant text: why the
 * body is malformed. What request points to is good until the next call, or as long as the packet.
 */
const char *codec_unpack(struct codec *codec, const struct wire_packet *packet,
                         struct request *request);

/*
 * Each packs one body. The result points into the codec and is good until the next one; its data is
 * NULL when the body is larger than a packet may be, which limits make impossible for all but
 * lists.
 */
struct bytes codec_empty(struct codec *codec);
struct bytes codec_error(struct codec *codec, const struct msg_error *reply);
struct bytes codec_hello(struct codec *codec, const struct msg_hello_reply *reply);
struct bytes codec_register(struct codec *codec, const struct msg_register_reply *reply);
struct bytes codec_map(struct codec *codec, const struct msg_map_reply *reply);
struct bytes codec_extents(struct codec *codec, const struct msg_extents *extents);
struct bytes codec_region(struct codec *codec, uint64_t region);
struct bytes codec_lookup(struct codec *codec, const struct msg_lookup_reply *reply);
struct bytes codec_remote(struct codec *codec, const struct msg_remote_reply *reply);
struct bytes codec_save(struct codec *codec, const struct msg_save_reply *reply);
struct bytes codec_save_done(struct codec *codec, const struct msg_outcome *notice);
struct bytes codec_abort(struct codec *codec, const struct msg_outcome *reply);
struct bytes codec_load(struct codec *codec, const struct msg_load_reply *reply);
struct bytes codec_extend(struct codec *codec, uint32_t lease_ms);
struct bytes codec_adopt(struct codec *codec, const struct msg_adopt_reply *reply);
struct bytes codec_stats(struct codec *codec, const struct msg_stats_reply *reply);
struct bytes codec_flush(struct codec *codec, uint64_t blocks);
struct bytes codec_pin(struct codec *codec, uint32_t count);
struct bytes codec_quota(struct codec *codec, uint32_t namespaces);
struct bytes codec_config(struct codec *codec, const struct msg_config_reply *reply);
struct bytes codec_list(struct codec *codec, const struct msg_list_reply *reply);
struct bytes codec_watch(struct codec *codec, const struct msg_watch_reply *reply);
struct bytes codec_drain(struct codec *codec, const struct msg_drain_reply *reply);
struct bytes codec_verify(struct codec *codec, const struct msg_verify_reply *reply);
struct bytes codec_ping(struct codec *codec, const struct msg_ping_reply *reply);
struct bytes codec_debug(struct codec *codec, const struct msg_debug_reply *reply);

#endif
