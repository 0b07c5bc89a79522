// Messages that are in the protocol, or will be, and that this daemon does not do: refused, with
// the descriptors that they bring closed, and the connection lives on.
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/raw.h"
#include "tests/lib/talk.h"
#include "tests/lib/wait.h"

static struct raw raw;

START_TEST(test_what_is_not_done_is_refused)
{
    static const uint16_t types[] = {
        WIRE_HINT,
        WIRE_TYPE_MAX + 1,
        WIRE_DEBUG - 1,
        WIRE_NOTICE - 1,
    };
    struct daemon *d = daemon_start(NULL);
    int sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);
    const int fds = daemon_fds(d);

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        talk_expect_error(sock, talk_send(sock, types[i], NULL), KVC_E_UNSUPPORTED, NULL);
        // With descriptors, which must not stay.
        raw_make(&raw, types[i], 77000 + (uint32_t)i, 0, 5);
        ck_assert(raw_send(sock, &raw));
        talk_expect_error(sock, 77000 + (uint32_t)i, KVC_E_UNSUPPORTED, NULL);
        talk_ping(sock);
        wait_for(daemon_fds(d) <= fds, 2000);
    }
    close(sock);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN("wire/unsupported", CHECK_LIFE_S, test_what_is_not_done_is_refused)
