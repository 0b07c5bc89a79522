/* Bodies of regions. */
#include "client/codec_bits.h"

kvc_status codec_put_region_begin(const struct codec_region *region, uint8_t *body, size_t *len)
{
    Kvcache__RegionBegin message = KVCACHE__REGION_BEGIN__INIT;

    message.part = region->part;
    message.blocks = region->blocks;
    message.pieces = region->pieces;
    message.n_slice_pieces = message.n_slice_offsets = message.n_slice_strides = region->n_slices;
    message.slice_pieces = (uint32_t *)region->slice_pieces;
    message.slice_offsets = (uint64_t *)region->slice_offsets;
    message.slice_strides = (uint64_t *)region->slice_strides;
    return codec_pack_body(&message.base, body, len);
}

kvc_status codec_put_region_part(uint64_t region, const struct codec_pieces *pieces, uint8_t *body,
                                 size_t *len)
{
    Kvcache__RegionPart message = KVCACHE__REGION_PART__INIT;

    message.region = region;
    message.kinds = codec_bytes(pieces->kinds, pieces->n);
    message.n_piece_bytes = message.n_piece_offsets = pieces->n;
    message.piece_bytes = (uint64_t *)pieces->bytes;
    message.piece_offsets = (uint64_t *)pieces->offsets;
    message.handles = codec_bytes(pieces->handles, (size_t)pieces->n_handles * CODEC_HANDLE_BYTES);
    return codec_pack_body(&message.base, body, len);
}

/* The four messages have one field each, of one number and type. */
kvc_status codec_put_region(uint64_t region, uint8_t *body, size_t *len)
{
    Kvcache__RegionEnd message = KVCACHE__REGION_END__INIT;

    message.region = region;
    return codec_pack_body(&message.base, body, len);
}

bool codec_get_region_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                            uint64_t *region)
{
    Kvcache__RegionReply *message =
        codec_unpack_body(scratch, &kvcache__region_reply__descriptor, packet);

    if (message == NULL)
        return false;
    *region = message->region;
    return true;
}
