#include "daemon/config_shares.h"

#include <ctype.h>
#include <string.h>

#include "daemon/config.h"

static bool refuse(char *why, const char *text, const char *what)
{
    return config_explain(why, "tenant-shares: \"%.64s\" %s", text, what);
}

static bool read_amount(const char *text, struct store_share *share, enum tier_kind tier)
{
    uint64_t permille;

    if (value_parse(VALUE_SHARE, text, NULL, &permille)) {
        share->permille[tier] = (uint32_t)permille;
        return permille <= 1000;
    }
    return value_parse(VALUE_SIZE, text, NULL, &share->bytes[tier]);
}

/* The text between the blanks around it, of which the end is written over. */
static char *trim(char *text)
{
    size_t n;

    while (isspace((unsigned char)*text))
        text++;
    n = strlen(text);
    while (n > 0 && isspace((unsigned char)text[n - 1]))
        text[--n] = '\0';
    return text;
}

static bool read_share(char *text, struct store_share *share, char *why)
{
    char *equal = strchr(text, '='), *slash, *name, *amount;

    memset(share, 0, sizeof(*share));
    if (!equal)
        return refuse(why, text, "is not NAME=SHARE");
    *equal = '\0';
    name = trim(text);
    amount = trim(equal + 1);
    if (*name == '\0' || strlen(name) > KVC_NAME_MAX)
        return refuse(why, name, "is no tenant's name");
    strcpy(share->tenant, name);
    slash = strchr(amount, '/');
    if (slash)
        *slash = '\0';
    if (!read_amount(trim(amount), share, TIER_GPU) ||
        !read_amount(trim(slash ? slash + 1 : amount), share, TIER_HOST))
        return refuse(why, amount, "is neither a part of 100% nor a size");
    return true;
}

bool config_shares(const char *text, struct store_share shares[CONFIG_SHARES_MAX], uint32_t *n,
                   char *why)
{
    char copy[CONFIG_TEXT_MAX], *next = copy;

    snprintf(copy, sizeof(copy), "%s", text);
    *n = 0;
    while (next) {
        char *one = next, *comma = strchr(next, ',');

        next = comma ? comma + 1 : NULL;
        if (comma)
            *comma = '\0';
        if (*n == CONFIG_SHARES_MAX)
            return config_explain(why, "tenant-shares: more than %u tenants", CONFIG_SHARES_MAX);
        if (!read_share(trim(one), &shares[*n], why))
            return false;
        for (uint32_t i = 0; i < *n; i++)
            if (strcmp(shares[i].tenant, shares[*n].tenant) == 0)
                return refuse(why, shares[i].tenant, "is named twice");
        ++*n;
    }
    return true;
}
