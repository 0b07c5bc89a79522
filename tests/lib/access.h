// A daemon with sockets and rules, and who is what there.
#ifndef KVC_TESTS_LIB_ACCESS_H
#define KVC_TESTS_LIB_ACCESS_H

#include "tests/lib/daemon.h"
#include "tests/lib/talk.h"

// Settings, {NULL, NULL} at the end: "--socket" and a file name of the test's folder with what
// belongs to it, or any other option and its value. Everybody may enter the folder, and sockets.
struct daemon *access_start(const char *const settings[][2]);

#define ACCESS_START(...) access_start((const char *const[][2]){__VA_ARGS__, {NULL, NULL}})

// How a HELLO of that role is answered.
kvc_status access_hello(const char *socket, Kvcache__Role role);

// The tenant that it is answered with.
void access_expect_tenant(const char *socket, Kvcache__Role role, const char *tenant);

// What this process may be, in letters: W worker, R reader, S scheduler, O operator. Who may look
// says that he is an operator; then requests say whether he may do more.
void access_expect_roles(const char *socket, const char *may);

#endif
