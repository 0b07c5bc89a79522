#include "daemon/settings.h"

#include <stdio.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/tune.h"

/* The sockets stay, so a rule may name one that there is only after a restart. */
static void apply_access(struct settings *s)
{
    struct config_access *fresh = mem_alloc(sizeof(*fresh));
    char why[CONFIG_WHY_MAX] = "out of memory";

    if (fresh != NULL && config_access_parse(s->config->sockets, s->config->allow, fresh, why)) {
        s->access = *fresh;
        api_set_access(s->api, &s->access.access);
    } else {
        log_error("main", "who may do what stays as it was: %s", why);
    }
    mem_free(fresh);
}

/* Puts into force what can change at run time. */
static void apply(struct settings *s)
{
    const struct store_tuning values = tune_store(s->config);

    apply_access(s);
    if (tune_quotas(s->config, s->store) != KVC_OK)
        log_error("main", "quotas stay as they were: out of memory");
    log_set_level((enum log_level)s->config->log_level);
    tune_copies(s->config, s->device);
    store_tune(s->store, &values);
}

static size_t count(void *ctx)
{
    (void)ctx;
    return config_count();
}

static void get(void *ctx, size_t i, struct api_setting *setting)
{
    const struct settings *s = ctx;
    struct config_entry entry;

    config_get(s->config, i, &entry);
    setting->name = entry.name;
    setting->origin = entry.origin;
    setting->runtime = entry.runtime;
    setting->tells = entry.tells;
    snprintf(setting->value, sizeof(setting->value), "%s", entry.value);
}

static bool set(void *ctx, const char *name, const char *value, char *why, size_t size)
{
    struct settings *s = ctx;
    char text[CONFIG_WHY_MAX];

    if (!config_change(s->config, name, value, text)) {
        snprintf(why, size, "%s", text);
        return false;
    }
    apply(s);
    return true;
}

struct api_settings settings_of(struct settings *s)
{
    return (struct api_settings){s, count, get, set};
}

void settings_reload(struct settings *s)
{
    struct config fresh;
    char why[CONFIG_WHY_MAX], differing[CONFIG_WHY_MAX];

    if (config_load(&fresh, s->source, why) != CONFIG_RUN) {
        log_error("main", "configuration not reloaded: %s", why);
        return;
    }
    config_adopt(s->config, &fresh, differing, sizeof(differing));
    apply(s);
    log_info("main", "configuration reloaded");
    if (differing[0] != '\0')
        log_warn("main", "these change only with a restart: %s", differing);
}
