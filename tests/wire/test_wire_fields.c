// Numbers of fields and of enum values never change: a client that was built with them must be
// understood by every daemon that comes later. fields.txt has them all.
#include <stdio.h>
#include <string.h>

#include "proto/kvcache.pb-c.h"
#include "tests/lib/check_main.h"
#include "tests/lib/tree.h"

static const ProtobufCMessageDescriptor *const messages[] = {
    &kvcache__error__descriptor,         &kvcache__hello__descriptor,
    &kvcache__tier_geometry__descriptor, &kvcache__hello_reply__descriptor,
    &kvcache__register__descriptor,      &kvcache__register_reply__descriptor,
    &kvcache__unregister__descriptor,    &kvcache__map__descriptor,
    &kvcache__map_reply__descriptor,     &kvcache__unmap__descriptor,
    &kvcache__extents__descriptor,       &kvcache__region_begin__descriptor,
    &kvcache__region_part__descriptor,   &kvcache__region_end__descriptor,
    &kvcache__region_reply__descriptor,  &kvcache__region_drop__descriptor,
    &kvcache__lookup_part__descriptor,   &kvcache__lookup__descriptor,
    &kvcache__lookup_reply__descriptor,  &kvcache__save_entry__descriptor,
    &kvcache__save__descriptor,          &kvcache__save_entry_reply__descriptor,
    &kvcache__save_reply__descriptor,    &kvcache__save_done__descriptor,
    &kvcache__abort__descriptor,         &kvcache__abort_reply__descriptor,
    &kvcache__load__descriptor,          &kvcache__load_reply__descriptor,
    &kvcache__extend__descriptor,        &kvcache__extend_reply__descriptor,
    &kvcache__release__descriptor,       &kvcache__adopt__descriptor,
    &kvcache__adopt_reply__descriptor,   &kvcache__drained__descriptor,
    &kvcache__suspend__descriptor,       &kvcache__resume__descriptor,
    &kvcache__remote__descriptor,        &kvcache__remote_reply__descriptor,
    &kvcache__report__descriptor,        &kvcache__flush__descriptor,
    &kvcache__flush_reply__descriptor,   &kvcache__hint__descriptor,
    &kvcache__pin__descriptor,           &kvcache__pin_reply__descriptor,
    &kvcache__quota__descriptor,         &kvcache__quota_reply__descriptor,
    &kvcache__stats__descriptor,         &kvcache__tier_stats__descriptor,
    &kvcache__stats_reply__descriptor,   &kvcache__list__descriptor,
    &kvcache__list_row__descriptor,      &kvcache__list_reply__descriptor,
    &kvcache__config__descriptor,        &kvcache__config_reply__descriptor,
    &kvcache__watch__descriptor,         &kvcache__watch_part__descriptor,
    &kvcache__watch_reply__descriptor,   &kvcache__ping__descriptor,
    &kvcache__ping_reply__descriptor,    &kvcache__empty__descriptor,
    &kvcache__debug__descriptor,         &kvcache__debug_reply__descriptor,
    &kvcache__hit_window__descriptor,    &kvcache__drain__descriptor,
    &kvcache__drain_reply__descriptor,   &kvcache__verify__descriptor,
    &kvcache__verify_reply__descriptor,
};
#define MESSAGES (sizeof(messages) / sizeof(messages[0]))

static const ProtobufCEnumDescriptor *const enums[] = {
    &kvcache__role__descriptor,       &kvcache__tier__descriptor,
    &kvcache__rule__descriptor,       &kvcache__memory_kind__descriptor,
    &kvcache__key_state__descriptor,  &kvcache__action__descriptor,
    &kvcache__event_type__descriptor,
};
#define ENUMS (sizeof(enums) / sizeof(enums[0]))

static char golden[64 * 1024];

static const char *type_of(const ProtobufCFieldDescriptor *field)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_UINT32:
        return "uint32";
    case PROTOBUF_C_TYPE_UINT64:
        return "uint64";
    case PROTOBUF_C_TYPE_SINT64:
        return "sint64";
    case PROTOBUF_C_TYPE_FIXED32:
        return "fixed32";
    case PROTOBUF_C_TYPE_FIXED64:
        return "fixed64";
    case PROTOBUF_C_TYPE_BOOL:
        return "bool";
    case PROTOBUF_C_TYPE_STRING:
        return "string";
    case PROTOBUF_C_TYPE_BYTES:
        return "bytes";
    case PROTOBUF_C_TYPE_ENUM:
        return ((const ProtobufCEnumDescriptor *)field->descriptor)->short_name;
    case PROTOBUF_C_TYPE_MESSAGE:
        return ((const ProtobufCMessageDescriptor *)field->descriptor)->short_name;
    default:
        ck_abort_msg("%s has a type that no client was told of", field->name);
        return "";
    }
}

static void in_golden(const char *line)
{
    ck_assert_msg(strstr(golden, line) != NULL, "not in tests/wire/fields.txt:%s", line);
}

START_TEST(test_numbers_are_kept)
{
    size_t lines = 0, expected = 0;
    char line[256];

    tree_read("tests/wire/fields.txt", golden, sizeof(golden));
    for (size_t m = 0; m < MESSAGES; m++) {
        for (unsigned f = 0; f < messages[m]->n_fields; f++) {
            const ProtobufCFieldDescriptor *field = &messages[m]->fields[f];
            snprintf(line, sizeof(line), "\n%s %u %s %s%s\n", messages[m]->short_name, field->id,
                     field->name, field->label == PROTOBUF_C_LABEL_REPEATED ? "repeated " : "",
                     type_of(field));
            in_golden(line);
            expected++;
        }
    }
    for (size_t e = 0; e < ENUMS; e++) {
        for (unsigned v = 0; v < enums[e]->n_values; v++) {
            snprintf(line, sizeof(line), "\nenum %s %d %s\n", enums[e]->short_name,
                     enums[e]->values[v].value, enums[e]->values[v].name);
            in_golden(line);
            expected++;
        }
    }
    // As many lines as that: nothing of what was there has gone.
    for (const char *at = golden; (at = strchr(at, '\n')) != NULL; at++)
        lines += at[1] != '#' && at[1] != '\0';
    ck_assert_uint_eq(lines, expected);
}
END_TEST

START_TEST(test_every_message_is_looked_at)
{
    static char proto[64 * 1024];
    size_t n_messages = 0, n_enums = 0;

    tree_read("proto/kvcache.proto", proto, sizeof(proto));
    for (const char *at = proto; (at = strstr(at, "\nmessage ")) != NULL; at++)
        n_messages++;
    for (const char *at = proto; (at = strstr(at, "\nenum ")) != NULL; at++)
        n_enums++;
    ck_assert_uint_eq(n_messages, MESSAGES);
    ck_assert_uint_eq(n_enums, ENUMS);
}
END_TEST

// A message in itself would let a short body nest deeply.
static unsigned depth(const ProtobufCMessageDescriptor *message, unsigned level)
{
    unsigned deepest = level;

    ck_assert_msg(level < 8, "%s contains itself", message->name);
    for (unsigned f = 0; f < message->n_fields; f++) {
        if (message->fields[f].type != PROTOBUF_C_TYPE_MESSAGE)
            continue;
        unsigned below = depth(message->fields[f].descriptor, level + 1);
        deepest = below > deepest ? below : deepest;
    }
    return deepest;
}

START_TEST(test_no_message_contains_itself)
{
    for (size_t m = 0; m < MESSAGES; m++)
        ck_assert_uint_le(depth(messages[m], 0), 1);
}
END_TEST

CHECK_MAIN("wire/fields", CHECK_UNIT_S, test_numbers_are_kept, test_every_message_is_looked_at,
           test_no_message_contains_itself)
