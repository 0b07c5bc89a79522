#include "daemon/config_quota.h"

#include <string.h>

#include "daemon/config.h"

#define NAME "namespace-quota"

static bool parse_digest(const char *word, struct config_quota *quota)
{
    quota->all = strcmp(word, "default") == 0;
    return quota->all || value_parse_digest(word, quota->digest);
}

/* One of "gpu=4G", "host=4G", "leases=100". */
static bool parse_amount(const char *word, struct config_quota *quota, char *why)
{
    const struct {
        const char *name;
        uint64_t *field;
        uint64_t max;
    } amounts[] = {{"gpu=", &quota->gpu_bytes, UINT64_MAX},
                   {"host=", &quota->host_bytes, UINT64_MAX},
                   {"leases=", &quota->leases, UINT32_MAX}};

    for (size_t i = 0; i < sizeof(amounts) / sizeof(amounts[0]); i++) {
        const size_t len = strlen(amounts[i].name);
        uint64_t value;

        if (strncmp(word, amounts[i].name, len) != 0)
            continue;
        if (*amounts[i].field != 0)
            return config_explain(why, NAME ": %.*s is set twice", (int)len - 1, word);
        if (!value_parse(VALUE_SIZE, word + len, NULL, &value))
            return config_explain(why, NAME ": \"%.64s\" is not %s", word, value_form(VALUE_SIZE));
        if (value == 0 || value > amounts[i].max)
            return config_explain(why, NAME ": %.64s is not between 1 and %llu", word,
                                  (unsigned long long)amounts[i].max);
        *amounts[i].field = value;
        return true;
    }
    return config_explain(why, NAME ": \"%.64s\" is none of gpu=SIZE, host=SIZE, leases=N", word);
}

static bool parse_one(char *text, struct config_quota *quota, char *why)
{
    char *rest = NULL, *word = strtok_r(text, " \t", &rest);

    *quota = (struct config_quota){0};
    if (word == NULL || !parse_digest(word, quota))
        return config_explain(why, NAME ": \"%.80s\" is neither 64 hex digits nor default",
                              word ? word : "");
    while ((word = strtok_r(NULL, " \t", &rest)))
        if (!parse_amount(word, quota, why))
            return false;
    if (quota->gpu_bytes == 0 && quota->host_bytes == 0 && quota->leases == 0)
        return config_explain(why, NAME ": no gpu=SIZE, host=SIZE or leases=N");
    return true;
}

static bool is_same(const struct config_quota *a, const struct config_quota *b)
{
    return a->all == b->all && memcmp(a->digest, b->digest, sizeof(a->digest)) == 0;
}

bool config_quotas_parse(const char *text, struct config_quota *quotas, uint32_t *ret, char *why)
{
    uint32_t n = 0;

    for (const char *end; *text != '\0'; text = *end ? end + 1 : end) {
        char one[CONFIG_QUOTA_ENTRY_MAX];
        size_t len;

        end = strchrnul(text, ';');
        len = (size_t)(end - text);
        if (len >= sizeof(one))
            return config_explain(why, NAME ": \"%.80s...\" is too long", text);
        if (n == CONFIG_QUOTAS_MAX)
            return config_explain(why, NAME ": more than %u", CONFIG_QUOTAS_MAX);
        memcpy(one, text, len);
        one[len] = '\0';
        if (!parse_one(one, &quotas[n], why))
            return false;
        for (uint32_t i = 0; i < n; i++)
            if (is_same(&quotas[i], &quotas[n]))
                return config_explain(why, NAME ": the same namespace twice");
        n++;
    }
    *ret = n;
    return true;
}

bool config_quotas_check(const char *text, char *why)
{
    struct config_quota quotas[CONFIG_QUOTAS_MAX];
    uint32_t n;

    return config_quotas_parse(text, quotas, &n, why);
}
