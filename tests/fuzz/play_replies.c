/* Replies and notices: what the library would not take fails, and what they name is kept. */
#include <sys/mman.h>

#include "tests/fuzz/play.h"

#define KEY_TOLD_ASSIGNED 1u

static uint8_t buffer[KVC_WIRE_PACKET_MAX];

void play_drop_page(struct play_client *c)
{
    if (c->page != NULL)
        munmap(c->page, PLAY_PAGE_BYTES);
    c->page = NULL;
}

static void keep_word(struct play *p, uint32_t word, uint64_t number)
{
    uint32_t i = p->names.n_words++ % PLAY_WORDS;

    FUZZ_REQUIRE(word < KVC_PAGE_WORDS);
    p->names.words[i] = word;
    p->names.numbers[i] = number;
}

static void require_place(uint32_t tier, uint64_t offset)
{
    FUZZ_REQUIRE(tier < TIER_COUNT);
    FUZZ_REQUIRE(offset < (tier == TIER_GPU ? RIG_GPU_BYTES : RIG_HOST_BYTES));
}

static void take_hello(struct play *p, const struct wire_packet *packet)
{
    struct codec_hello_reply reply;
    void *page;

    FUZZ_REQUIRE(codec_get_hello_reply(&p->scratch, packet, &reply));
    p->names.session = p->me->session = reply.session;
    memcpy(p->names.secret, reply.secret, sizeof(p->names.secret));
    FUZZ_REQUIRE((reply.page_words > 0) == (packet->n_fds == 1));
    if (packet->n_fds == 0)
        return;
    page = mmap(NULL, PLAY_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, packet->fds[0], 0);
    FUZZ_REQUIRE(page != MAP_FAILED);
    play_drop_page(p->me);
    p->me->page = page;
}

static void take_map(struct play *p, const struct wire_packet *packet)
{
    struct codec_map_reply reply;

    FUZZ_REQUIRE(codec_get_map_reply(&p->scratch, packet, &reply));
    FUZZ_REQUIRE(reply.n_extents == packet->n_fds);
    p->me->cursor = reply.cursor;
    p->me->n_extents = reply.n_extents;
    for (uint32_t i = 0; i < reply.n_extents; i++)
        p->me->extents[i] = reply.extents[i];
}

static void take_save(struct play *p, const struct wire_packet *packet)
{
    static struct codec_save_reply reply;
    uint32_t assigned = 0, chunked = 0, told = 0;

    FUZZ_REQUIRE(codec_get_save_reply(&p->scratch, packet, &reply));
    for (uint32_t e = 0; e < reply.n_entries; e++) {
        for (uint32_t i = 0; i < reply.entries[e].n_assigned; i++)
            require_place(reply.entries[e].tiers[i], reply.entries[e].offsets[i]);
        for (uint32_t i = 0; i < reply.entries[e].n_states; i++)
            told += reply.entries[e].states[i] == KEY_TOLD_ASSIGNED;
        assigned += reply.entries[e].n_assigned;
    }
    for (uint32_t i = 0; i < reply.n_chunks; i++) {
        keep_word(p, reply.chunk_words[i], reply.chunk_numbers[i]);
        chunked += reply.chunk_blocks[i];
    }
    /* Places are not told when the daemon copies. */
    FUZZ_REQUIRE(assigned == chunked && (assigned == told || assigned == 0));
    FUZZ_REQUIRE((reply.save != 0) == (told > 0));
    if (reply.save != 0)
        p->names.save = reply.save;
}

/* Copied by the daemon. */
static void require_judged(const struct codec_load_reply *reply)
{
    bool all = true;

    FUZZ_REQUIRE(reply->count == 0);
    FUZZ_REQUIRE(reply->n_sums == 0 || reply->n_sums == reply->n_valid);
    for (uint32_t i = 0; i < reply->n_valid; i++) {
        FUZZ_REQUIRE(reply->valid[i] <= 1);
        all = all && reply->valid[i];
    }
    FUZZ_REQUIRE(all == (reply->status == KVC_OK));
}

static void take_load(struct play *p, const struct wire_packet *packet)
{
    struct codec_load_reply reply;

    FUZZ_REQUIRE(codec_get_load_reply(&p->scratch, packet, &reply));
    if (reply.n_valid > 0) {
        require_judged(&reply);
        return;
    }
    for (uint32_t i = 0; i < reply.count; i++)
        require_place(reply.tiers[i], reply.offsets[i]);
    keep_word(p, reply.word, reply.number);
    if (reply.count > 0) {
        p->names.tier = reply.tiers[0];
        p->names.generation = reply.generations[0];
        p->names.offset = reply.offsets[0];
    }
}

static void take_lease(struct play *p, const struct wire_packet *packet)
{
    struct codec_lookup_reply reply;

    if (packet->type == (WIRE_LOOKUP | WIRE_REPLY))
        FUZZ_REQUIRE(codec_get_lookup_reply(&p->scratch, packet, &reply));
    else
        FUZZ_REQUIRE(codec_get_adopt_reply(&p->scratch, packet, &reply));
    if (reply.lease == 0)
        return;
    p->names.lease = reply.lease;
    if (packet->type == (WIRE_LOOKUP | WIRE_REPLY))
        memcpy(p->names.token, reply.token, sizeof(p->names.token));
}

void play_take(struct play *p, const struct wire_packet *packet)
{
    struct codec_register_reply part;
    struct codec_outcome outcome;
    struct codec_error error;

    switch (packet->type) {
    case WIRE_HELLO | WIRE_REPLY:
        take_hello(p, packet);
        return;
    case WIRE_MAP | WIRE_REPLY:
        take_map(p, packet);
        return;
    case WIRE_REGISTER | WIRE_REPLY:
        FUZZ_REQUIRE(codec_get_register_reply(&p->scratch, packet, &part));
        p->me->part = part.part;
        p->me->epoch = part.epoch;
        break;
    case WIRE_LOOKUP | WIRE_REPLY:
    case WIRE_ADOPT | WIRE_REPLY:
        take_lease(p, packet);
        break;
    case WIRE_SAVE | WIRE_REPLY:
        take_save(p, packet);
        break;
    case WIRE_LOAD | WIRE_REPLY:
        take_load(p, packet);
        break;
    case WIRE_REGION_BEGIN | WIRE_REPLY:
    case WIRE_REGION_END | WIRE_REPLY:
        FUZZ_REQUIRE(codec_get_region_reply(&p->scratch, packet, &p->names.region));
        FUZZ_REQUIRE(p->names.region != 0);
        break;
    case WIRE_SAVE_DONE:
        FUZZ_REQUIRE(codec_get_save_done(&p->scratch, packet, &outcome));
        break;
    case WIRE_ERROR:
        FUZZ_REQUIRE(codec_get_error(packet, &error));
        break;
    default:
        break;
    }
    FUZZ_REQUIRE(packet->n_fds == 0);
}

void play_read(struct play *p, uint32_t n)
{
    struct wire_packet packet;
    const char *why = NULL;

    for (; n > 0 && p->me->sock >= 0; n--) {
        enum wire_result result = wire_recv(p->me->sock, buffer, &packet, &why);

        FUZZ_REQUIRE(result != WIRE_BAD, "the daemon sent a malformed packet: %s", why);
        if (result != WIRE_OK)
            return;
        play_take(p, &packet);
        wire_close_fds(&packet);
    }
}
