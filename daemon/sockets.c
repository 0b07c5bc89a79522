#include "daemon/sockets.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "daemon/base/fd.h"
#include "daemon/base/log.h"

static bool is_passed_only(const struct config_socket *socket)
{
    return strncmp(socket->path, CONFIG_PASSED, strlen(CONFIG_PASSED)) == 0;
}

/* Whether an entry means a socket that was passed. */
static bool means(const struct config_socket *socket, int sock, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNSPEC};
    socklen_t len = sizeof(address) - 1; /* a full path has no end of its own */

    if (is_passed_only(socket))
        return strcmp(socket->path + strlen(CONFIG_PASSED), name) == 0;
    return getsockname(sock, (struct sockaddr *)&address, &len) == 0 &&
           address.sun_family == AF_UNIX && strcmp(address.sun_path, socket->path) == 0;
}

static uint32_t find(const struct config_access *config, int sock, const char *name)
{
    uint32_t i = 0;

    while (i < config->access.n_doors && !means(&config->sockets[i], sock, name))
        i++;
    return i;
}

static kvc_status take_passed(struct sockets *sockets, const struct config_access *config,
                              struct service *service, char *why)
{
    const uint32_t n = config->access.n_doors;
    const bool is_alone = service_passed(service) == 1;
    char name[SERVICE_NAME_MAX];
    int sock;

    while (service_passed(service) > 0) {
        kvc_status status;
        uint32_t at;

        if (!service_take_socket(service, &sock, name, why))
            return KVC_E_INVALID;
        at = find(config, sock, name);
        if (at == n && is_alone && !is_passed_only(&config->sockets[0]))
            at = 0;
        if (at == n || sockets->endpoints[at] != NULL) {
            snprintf(why, SOCKETS_WHY_MAX,
                     "the service manager passed \"%.64s\", for which there %s", name,
                     at == n ? "is no setting socket" : "is another one already");
            fd_close(sock);
            return KVC_E_INVALID;
        }
        status = endpoint_adopt(sock, &sockets->endpoints[at], why);
        if (status != KVC_OK)
            return status;
        log_info("main", "the socket is the service manager's socket=%s name=\"%s\"",
                 config->sockets[at].path, name);
    }
    return KVC_OK;
}

kvc_status sockets_open(struct sockets *sockets, const struct config_access *config, mode_t mode,
                        struct service *service, char *why)
{
    kvc_status status = KVC_OK;

    *sockets = (struct sockets){.n = config->access.n_doors};
    status = take_passed(sockets, config, service, why);
    for (uint32_t i = 0; i < sockets->n && status == KVC_OK; i++) {
        const struct config_socket *socket = &config->sockets[i];

        if (sockets->endpoints[i] != NULL)
            continue;
        if (is_passed_only(socket)) {
            snprintf(why, SOCKETS_WHY_MAX, "the service manager passed no socket named \"%.64s\"",
                     socket->path + strlen(CONFIG_PASSED));
            return KVC_E_INVALID;
        }
        status = endpoint_open(socket->path, socket->has_mode ? socket->mode : mode, socket->group,
                               &sockets->endpoints[i], why);
    }
    return status;
}

void sockets_hide(struct sockets *sockets)
{
    for (uint32_t i = 0; i < sockets->n; i++)
        endpoint_hide(sockets->endpoints[i]);
}

void sockets_close(struct sockets *sockets)
{
    for (uint32_t i = 0; i < sockets->n; i++)
        endpoint_close(sockets->endpoints[i]);
    sockets->n = 0;
}
