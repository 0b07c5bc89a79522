/*
 * kvcachectl ping: one round trip, and how long it took.
 */
#include <stdio.h>
#include <time.h>

#include "client/ctl/ctl.h"
#include "client/ctl/field.h"

static const struct field fields[] = {
    {"us", FIELD_REAL, FIELD_APART, "microseconds that the round trip took"},
    {"boot_epoch", FIELD_UINT64, FIELD_APART, "of the daemon"},
};
static const struct shape shape = {"an object", SHAPE_FIELDS(fields)};

int ping_command(struct ctl *ctl, int argc, char **argv)
{
    int exit_status;
    if (!ctl_parse(ctl, argc, argv, "Measures one round trip to the daemon.", &shape, &exit_status))
        return exit_status;
    kvc_client *client = ctl_connect(ctl);
    if (!client)
        return CTL_FAILED;
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    kvc_status status = kvc_ping(client);
    clock_gettime(CLOCK_MONOTONIC, &end);
    int result = CTL_OK;
    double micros =
        (double)(end.tv_sec - start.tv_sec) * 1e6 + (double)(end.tv_nsec - start.tv_nsec) * 1e-3;
    if (status != KVC_OK)
        result = ctl_fail(ctl, client, "ping", status);
    else if (ctl->json)
        printf("{\"us\": %.1f, \"boot_epoch\": %llu}\n", micros,
               (unsigned long long)kvc_boot_epoch(client));
    else
        printf("answered in %.0f us\n", micros);
    kvc_close(client);
    return result;
}
