/* Refusals, and the checks of fields that several families share. */
#include "daemon/api/session.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#undef refuse /* defined for analysers of other files */

kvc_status refuse(struct refusal *why, kvc_status status, const char *detail, const char *field,
                  ...)
{
    va_list args;

    va_start(args, field);
    vsnprintf(why->field, sizeof(why->field), field, args);
    va_end(args);
    snprintf(why->detail, sizeof(why->detail), "%s", detail);
    return status;
}

kvc_status keys_count(struct bytes keys, uint32_t *n, struct refusal *why, const char *field, ...)
{
    va_list args;

    if (keys.len % KVC_KEY_BYTES == 0) {
        *n = (uint32_t)(keys.len / KVC_KEY_BYTES);
        return KVC_OK;
    }
    va_start(args, field);
    vsnprintf(why->field, sizeof(why->field), field, args);
    va_end(args);
    snprintf(why->detail, sizeof(why->detail), "not a multiple of %u bytes", KVC_KEY_BYTES);
    return KVC_E_INVALID;
}

/* Bytes of the character that begins here: 1 to 4, or 0 if it is none (RFC 3629) or a control. */
static size_t character(const unsigned char *at)
{
    static const struct {
        unsigned char mask, lead;
        uint32_t least;
    } forms[] = {
        {0x80, 0x00, 0x20}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};

    for (size_t n = 0; n < 4; n++) {
        uint32_t code = at[0] & (unsigned char)~forms[n].mask;

        if ((at[0] & forms[n].mask) != forms[n].lead)
            continue;
        for (size_t i = 1; i <= n; i++) {
            if ((at[i] & 0xc0) != 0x80)
                return 0;
            code = code << 6 | (at[i] & 0x3f);
        }
        if (code < forms[n].least || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff) ||
            (code >= 0x7f && code < 0xa0))
            return 0;
        return n + 1;
    }
    return 0;
}

kvc_status name_check(const char *name, struct refusal *why, const char *field)
{
    const unsigned char *at = (const unsigned char *)name;
    size_t n;

    if (strlen(name) > KVC_NAME_MAX)
        return refuse(why, KVC_E_LIMIT, "longer than a name may be", "%s", field);
    for (; *at != '\0'; at += n) {
        n = character(at);
        if (n == 0)
            return refuse(why, KVC_E_INVALID, "not printable UTF-8", "%s", field);
    }
    return KVC_OK;
}
