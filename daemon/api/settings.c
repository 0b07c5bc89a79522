/* CONFIG, and LIST "config": the daemon's settings, which the server keeps. */
#include "daemon/api/session.h"

#include "daemon/base/log.h"
#include "daemon/base/mem.h"

enum column { NAME, VALUE, ORIGIN, CHANGES, COLUMNS };

static const char *const column_names[COLUMNS] = {"name", "value", "origin", "changes"};

/* Short enough for one reply, however long the values are: no paging. */
#define SETTINGS_MAX 48u

kvc_status settings_list(struct session *s, const struct request *request, struct refusal *why)
{
    const struct api_settings *settings = &s->api->config.settings;
    const size_t n = settings->count(settings->ctx);
    struct msg_list_row rows[SETTINGS_MAX];
    struct msg_list_reply reply = {
        .columns = column_names, .n_columns = COLUMNS, .rows = rows, .n_rows = (uint32_t)n};
    struct api_setting *values;

    if (n > SETTINGS_MAX)
        return refuse(why, KVC_E_LIMIT, "more settings than a reply may have", "what");
    values = mem_array(n, sizeof(*values));
    if (values == NULL)
        return refuse(why, KVC_E_NO_MEMORY, "", "%s", "");
    for (size_t i = 0; i < n; i++) {
        settings->get(settings->ctx, i, &values[i]);
        rows[i].values[NAME] = values[i].name;
        rows[i].values[VALUE] =
            values[i].tells && !session_is_operator(s) ? "(for operators)" : values[i].value;
        rows[i].values[ORIGIN] = values[i].origin;
        rows[i].values[CHANGES] = values[i].runtime ? "now" : "restart";
    }
    session_reply(s, WIRE_LIST, request->seq, codec_list(s->api->codec, &reply));
    mem_free(values);
    return KVC_OK;
}

kvc_status settings_config(struct session *s, const struct request *request, struct refusal *why)
{
    const struct api_settings *settings = &s->api->config.settings;
    struct msg_config_reply reply = {.name = request->config.name, .value = request->config.value};
    char text[sizeof(why->detail)];

    if (!settings->set(settings->ctx, reply.name, reply.value, text, sizeof(text)))
        return refuse(why, KVC_E_INVALID, text, "value");
    log_info("api", "setting changed session=%llu request=%u pid=%d %s=%s",
             (unsigned long long)owner_id(s->owner), request->seq, (int)process_pid(s->process),
             reply.name, reply.value);
    session_reply(s, WIRE_CONFIG, request->seq, codec_config(s->api->codec, &reply));
    return KVC_OK;
}
