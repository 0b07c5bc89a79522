#include "tests/lib/fakedaemon.h"

#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/proc.h"
#include "tests/lib/random.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define PAGE_BYTES ((size_t)KVC_PAGE_WORDS * KVC_PAGE_STRIDE)

static int make_memfd(size_t size)
{
    int fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)size), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    return fd;
}

static uint8_t *map_shared(void *at, size_t size, int fd)
{
    void *got = mmap(at, size, PROT_READ | PROT_WRITE,
                     MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0) | (at ? MAP_FIXED : 0), fd, 0);

    ck_assert_ptr_ne(got, MAP_FAILED);
    return got;
}

static void make_memory(struct fake *fake)
{
    fake->shared = (void *)map_shared(NULL, sizeof(*fake->shared), -1);
    fake->shared->boot_epoch = 100;
    fake->shared->part_epoch = 1;
    fake->page_fd = make_memfd(PAGE_BYTES);
    fake->page = map_shared(NULL, PAGE_BYTES, fake->page_fd);
    for (int t = 0; t < 2; t++) {
        fake->slab[t] = map_shared(NULL, FAKE_TIER_BYTES, -1);
        for (uint32_t i = 0; i < FAKE_EXTENTS; i++) {
            fake->extents[t][i] = make_memfd(FAKE_EXTENT_BYTES);
            map_shared(fake->slab[t] + (uint64_t)i * FAKE_EXTENT_BYTES, FAKE_EXTENT_BYTES,
                       fake->extents[t][i]);
        }
    }
}

static void make_listener(struct fake *fake)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    static unsigned number;
    char name[16];

    snprintf(name, sizeof(name), "fake%u", number++);
    fake->socket = tmpdir_file(name);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", fake->socket);
    fake->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fake->listener, 0);
    ck_assert_int_eq(bind(fake->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(fake->listener, 16), 0);
}

void *fake_body(const struct wire_packet *request, const ProtobufCMessageDescriptor *descriptor)
{
    void *message = protobuf_c_message_unpack(descriptor, NULL, request->body_len, request->body);

    if (!message) {
        fprintf(stderr, "fake daemon: malformed %s\n", wire_type_name(request->type));
        _exit(1);
    }
    return message;
}

// Mostly a few bits of the body, sometimes its length, type or number.
static void spoil(uint64_t *state, struct wire_packet *packet, uint8_t *body)
{
    const uint64_t kind = random_next(state) % 32;

    for (uint64_t n = random_next(state) % 3; n > 0 && packet->body_len > 0; n--)
        body[random_next(state) % packet->body_len] ^= (uint8_t)(1u << random_next(state) % 8);
    if (kind == 0)
        packet->body_len = (uint32_t)(random_next(state) % (packet->body_len + 1));
    else if (kind == 1)
        packet->type ^= (uint16_t)(1u << random_next(state) % 16);
    else if (kind == 2)
        packet->seq += 1;
    else if (kind == 3)
        packet->n_fds = 0;
}

void fake_send(struct fake *fake, uint16_t type, uint32_t seq, const ProtobufCMessage *message,
               const int *fds, uint32_t n_fds)
{
    static uint8_t body[KVC_WIRE_BODY_MAX];
    struct wire_packet packet = {.type = type, .seq = seq, .body = body, .n_fds = n_fds};
    struct pollfd writable = {.fd = fake->sock, .events = POLLOUT};

    if (message)
        packet.body_len = (uint32_t)protobuf_c_message_pack(message, body);
    if (n_fds > 0)
        memcpy(packet.fds, fds, n_fds * sizeof(int));
    if (fake->shared->spoil)
        spoil(&fake->shared->spoil, &packet, body);
    while (wire_send(fake->sock, &packet) == WIRE_AGAIN)
        poll(&writable, 1, 1000);
}

void fake_reply(struct fake *fake, const struct wire_packet *request,
                const ProtobufCMessage *message)
{
    fake_send(fake, request->type | WIRE_REPLY, request->seq, message, NULL, 0);
}

void fake_error(struct fake *fake, const struct wire_packet *request, kvc_status status,
                const char *field, const char *detail)
{
    Kvcache__Error error = KVCACHE__ERROR__INIT;

    error.status = status;
    error.field = (char *)field;
    error.detail = (char *)detail;
    fake_send(fake, WIRE_ERROR, request->seq, &error.base, NULL, 0);
}

static void serve(struct fake *fake)
{
    static uint8_t buffer[KVC_WIRE_PACKET_MAX];
    struct pollfd readable = {.fd = fake->sock, .events = POLLIN};
    struct wire_packet request;
    const char *why;

    for (;;) {
        enum wire_result result = wire_recv(fake->sock, buffer, &request, &why);

        if (result == WIRE_AGAIN) {
            poll(&readable, 1, -1);
            continue;
        }
        if (result != WIRE_OK)
            return;
        wire_close_fds(&request);
        fake_note(fake, &request);
        if (!fake->hook || !fake->hook(fake, &request))
            fake_usual(fake, &request);
        __atomic_fetch_add(&fake->shared->count[request.type % 128], 1, __ATOMIC_RELEASE);
    }
}

static void run(struct fake *fake)
{
    signal(SIGPIPE, SIG_IGN);
    for (;;) {
        fake->sock = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fake->sock < 0)
            _exit(1);
        fake->shared->connections++;
        serve(fake);
        close(fake->sock);
    }
}

struct fake *fake_start(fake_hook *hook)
{
    struct fake *fake = calloc(1, sizeof(*fake));

    ck_assert_ptr_nonnull(fake);
    fake->hook = hook;
    make_memory(fake);
    make_listener(fake);
    fake->pid = proc_fork();
    if (fake->pid == 0)
        run(fake);
    close(fake->listener);
    close(fake->page_fd);
    for (int t = 0; t < 2; t++)
        for (uint32_t i = 0; i < FAKE_EXTENTS; i++)
            close(fake->extents[t][i]);
    return fake;
}

void fake_stop(struct fake *fake)
{
    int status = 0;

    if (waitpid(fake->pid, &status, WNOHANG) == 0)
        proc_kill(fake->pid);
    ck_assert_msg(!WIFEXITED(status) || WEXITSTATUS(status) == 0, "the fake daemon failed");
    munmap(fake->shared, sizeof(*fake->shared));
    munmap(fake->page, PAGE_BYTES);
    for (int t = 0; t < 2; t++)
        munmap(fake->slab[t], FAKE_TIER_BYTES);
    free(fake);
}

uint32_t fake_count(const struct fake *fake, uint16_t type)
{
    return __atomic_load_n(&fake->shared->count[type % 128], __ATOMIC_ACQUIRE);
}

void fake_freeze(struct fake *fake)
{
    siginfo_t info;

    kill(fake->pid, SIGSTOP);
    ck_assert_int_eq(waitid(P_PID, (id_t)fake->pid, &info, WSTOPPED | WNOWAIT), 0);
}

void fake_thaw(struct fake *fake)
{
    kill(fake->pid, SIGCONT);
}

kvc_client *fake_connect(const struct fake *fake, kvc_role role)
{
    const kvc_options options = {.socket = fake->socket,
                                 .role = role,
                                 .connect_ms = wait_patient_ms(5000),
                                 .lookup_ms = wait_patient_ms(5000),
                                 .save_ms = wait_patient_ms(5000),
                                 .load_ms = wait_patient_ms(5000)};
    kvc_client *client = NULL;

    ck_assert_int_eq(kvc_connect(&options, &client), KVC_OK);
    return client;
}
