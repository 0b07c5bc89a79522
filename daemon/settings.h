/*
 * The settings while the daemon runs: those that can change are put into force, operators look at
 * all of them and change some, and a reload reads their sources again.
 */
#ifndef KVC_DAEMON_SETTINGS_H
#define KVC_DAEMON_SETTINGS_H

#include "daemon/api/api.h"
#include "daemon/config_access.h"
#include "daemon/config_source.h"
#include "daemon/device/device.h"

struct settings {
    struct config *config;
    const struct config_source *source;
    struct config_access access; /* in force */
    const struct device *device;
    struct api *api; /* this and store: before any of these calls is made */
    struct store *store;
};

/* For the requests of operators. */
struct api_settings settings_of(struct settings *settings);
/* What is wrong is logged, and changes nothing. */
void settings_reload(struct settings *settings);

#endif
