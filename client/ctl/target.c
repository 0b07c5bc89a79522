#include "client/ctl/target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/admin.h"

#define PAGE_ROWS 100

static int digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Exactly n bytes of hex digits. */
static bool unhex(const char *text, uint8_t *bytes, size_t n)
{
    if (strlen(text) != 2 * n)
        return false;
    for (size_t i = 0; i < n; i++) {
        int high = digit_of(text[2 * i]), low = digit_of(text[2 * i + 1]);

        if (high < 0 || low < 0)
            return false;
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static int add_key(const struct ctl *ctl, struct target *target, const char *text)
{
    uint8_t *keys = realloc(target->keys, ((size_t)target->n_keys + 1) * KVC_KEY_BYTES);

    if (!keys) {
        fprintf(stderr, "%s: out of memory\n", ctl->program);
        return CTL_FAILED;
    }
    target->keys = keys;
    if (!unhex(text, keys + (size_t)target->n_keys * KVC_KEY_BYTES, KVC_KEY_BYTES))
        return ctl_usage(ctl, "a key is 32 hex digits", text);
    target->n_keys++;
    return CTL_OK;
}

static int read_file(const struct ctl *ctl, struct target *target)
{
    bool is_stdin = strcmp(target->keys_file, "-") == 0;
    FILE *file = is_stdin ? stdin : fopen(target->keys_file, "re");
    char word[128];
    int result = CTL_OK;

    if (!file) {
        fprintf(stderr, "%s: cannot read %s: %m\n", ctl->program, target->keys_file);
        return CTL_FAILED;
    }
    while (result == CTL_OK && fscanf(file, "%127s", word) == 1)
        result = add_key(ctl, target, word);
    if (result == CTL_OK && ferror(file)) {
        fprintf(stderr, "%s: cannot read %s: %m\n", ctl->program, target->keys_file);
        result = CTL_FAILED;
    }
    if (!is_stdin)
        fclose(file);
    if (result == CTL_OK && target->n_keys == 0)
        return ctl_usage(ctl, "a file of keys has some", target->keys_file);
    return result;
}

int target_read_keys(const struct ctl *ctl, struct target *target, int argc, char **argv)
{
    int result = CTL_OK;

    for (int i = 0; i < argc && result == CTL_OK; i++)
        result = add_key(ctl, target, argv[i]);
    if (result == CTL_OK && target->keys_file)
        result = read_file(ctl, target);
    return result;
}

static bool matches(const struct admin_row *row, const char *wanted)
{
    return strncmp(row->values[0], wanted, strlen(wanted)) == 0 ||
           strcmp(row->values[2], wanted) == 0;
}

/* The same digest under several tenants is one namespace here. */
static int take(const struct ctl *ctl, const struct admin_row *row, bool *found,
                struct target *target)
{
    uint8_t digest[KVC_NAMESPACE_BYTES];

    if (!unhex(row->values[0], digest, sizeof(digest)))
        return ctl_usage(ctl, "the daemon's list has digests", row->values[0]);
    if (*found && memcmp(digest, target->digest, sizeof(digest)) != 0) {
        fprintf(stderr,
                "%s: several namespaces are '%s': say more of the digest of the one that is meant "
                "(kvcachectl namespaces)\n",
                ctl->program, target->namespace_);
        return CTL_USAGE;
    }
    memcpy(target->digest, digest, sizeof(digest));
    *found = true;
    return CTL_OK;
}

int target_find_namespace(const struct ctl *ctl, kvc_client *client, struct target *target)
{
    struct admin_list list = {.more = true};
    int result = CTL_OK;
    bool found = unhex(target->namespace_, target->digest, sizeof(target->digest));

    if (found || *target->namespace_ == '\0')
        return found ? CTL_OK : ctl_usage(ctl, "a namespace has a name", "");
    while (list.more && result == CTL_OK) {
        kvc_status status = admin_list(client, "namespaces", list.after, PAGE_ROWS, &list);

        if (status != KVC_OK)
            return ctl_fail(ctl, client, "namespaces", status);
        for (size_t i = 0; i < list.n_rows && result == CTL_OK; i++)
            if (list.rows[i].n_values > 2 && matches(&list.rows[i], target->namespace_))
                result = take(ctl, &list.rows[i], &found, target);
    }
    if (result == CTL_OK && !found) {
        fprintf(stderr, "%s: no namespace '%s' (kvcachectl namespaces lists them)\n", ctl->program,
                target->namespace_);
        return CTL_FAILED;
    }
    return result;
}

void target_free(struct target *target)
{
    free(target->keys);
    *target = (struct target){0};
}
