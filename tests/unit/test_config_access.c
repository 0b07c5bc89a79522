// The settings socket and allow: what they mean, and what they refuse.
#include <grp.h>
#include <stdio.h>
#include <string.h>

#include "daemon/config.h"
#include "tests/lib/check_main.h"

#define A "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define B "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static struct config_access got;
static char why[CONFIG_WHY_MAX];

START_TEST(test_a_path_is_enough)
{
    ck_assert(config_access_parse("/run/kvcached/kvcached.sock", "", &got, why));
    ck_assert_uint_eq(got.access.n_doors, 1);
    ck_assert_uint_eq(got.access.n_rules, 0);
    ck_assert_str_eq(got.sockets[0].path, "/run/kvcached/kvcached.sock");
    ck_assert(!got.sockets[0].has_mode);
    ck_assert_uint_eq(got.sockets[0].group, (gid_t)-1);
    ck_assert_str_eq(got.access.doors[0].tenant, "");
    ck_assert_uint_eq(got.access.doors[0].roles, ACCESS_UNSAID);
    ck_assert_uint_eq(got.access.doors[0].n_namespaces, 0);
}
END_TEST

START_TEST(test_a_socket_carries_all)
{
    const struct group *root = getgrgid(0);
    char text[512];

    ck_assert_ptr_nonnull(root);
    snprintf(text, sizeof(text),
             "/a; /b tenant=team-a roles=worker,operator mode=0600 group=%s "
             "namespaces=" A "; fd:c roles=reader; /b namespaces=" B "; /d roles=none",
             root->gr_name);
    ck_assert_msg(config_access_parse(text, "", &got, why), "%s", why);
    ck_assert_uint_eq(got.access.n_doors, 4);
    ck_assert_str_eq(got.sockets[1].path, "/b");
    ck_assert(got.sockets[1].has_mode);
    ck_assert_uint_eq(got.sockets[1].mode, 0600);
    ck_assert_uint_eq(got.sockets[1].group, 0);
    ck_assert_str_eq(got.access.doors[1].tenant, "team-a");
    ck_assert_uint_eq(got.access.doors[1].roles, ACCESS_WORKER | ACCESS_OPERATOR);
    ck_assert_uint_eq(got.access.doors[1].n_namespaces, 2);
    ck_assert_uint_eq(got.access.doors[1].namespaces[0][1], 0x11);
    ck_assert_uint_eq(got.access.doors[1].namespaces[1][0], 0xff);
    ck_assert(access_has_namespace(&got.access.doors[1], got.access.doors[1].namespaces[1]));
    ck_assert(!access_has_namespace(&got.access.doors[1], (const uint8_t[KVC_NAMESPACE_BYTES]){1}));
    ck_assert(access_has_namespace(&got.access.doors[0], (const uint8_t[KVC_NAMESPACE_BYTES]){1}));
    ck_assert_str_eq(got.sockets[2].path, "fd:c");
    ck_assert_uint_eq(got.access.doors[2].roles, ACCESS_READER);
    ck_assert_uint_eq(got.access.doors[3].roles, 0);
}
END_TEST

START_TEST(test_rules_keep_their_order)
{
    ck_assert_msg(config_access_parse("/a; /b",
                                      "uid:1000 roles=reader,scheduler socket=/b; "
                                      "user:root tenant=t; gid:7 roles=none; *",
                                      &got, why),
                  "%s", why);
    ck_assert_uint_eq(got.access.n_rules, 4);
    ck_assert_int_eq(got.access.rules[0].who, ACCESS_UID);
    ck_assert_uint_eq(got.access.rules[0].id, 1000);
    ck_assert_uint_eq(got.access.rules[0].door, 1);
    ck_assert_uint_eq(got.access.rules[0].roles, ACCESS_READER | ACCESS_SCHEDULER);
    ck_assert_uint_eq(got.access.rules[1].id, 0);
    ck_assert_str_eq(got.access.rules[1].tenant, "t");
    ck_assert_uint_eq(got.access.rules[1].door, ACCESS_DOORS_MAX);
    ck_assert_uint_eq(got.access.rules[1].roles, ACCESS_UNSAID);
    ck_assert_int_eq(got.access.rules[2].who, ACCESS_GID);
    ck_assert_uint_eq(got.access.rules[2].roles, 0);
    ck_assert_int_eq(got.access.rules[3].who, ACCESS_ANYBODY);
}
END_TEST

static const char *const no_sockets[] = {
    "",
    ";",
    "/a;;/b",
    "/a what",
    "/a what=1",
    "/a tenant=",
    "/a tenant=uid:7",
    "/a tenant=a,b",
    "/a tenant=*",
    "/a tenant=a tenant=b",
    "/a tenant=1234567890123456789012345678901234567890123456789012345678901234",
    "/a roles=root",
    "/a roles=worker,",
    "/a mode=0888",
    "/a mode=1777",
    "/a group=no-such-group-here",
    "/a namespaces=" A,
    "/a tenant=t namespaces=0011",
    "/a tenant=t namespaces=" A "0",
    "/a; /a",
    "/a tenant=t; /a tenant=t",
    "/1;/2;/3;/4;/5;/6;/7;/8;/9;/10;/11;/12;/13;/14;/15;/16;/17",
};

START_TEST(test_no_sockets)
{
    const bool trailing = strcmp(no_sockets[_i], "/a roles=worker,") == 0;

    why[0] = '\0';
    ck_assert_msg(config_access_parse(no_sockets[_i], "", &got, why) == trailing, "%s",
                  no_sockets[_i]);
    ck_assert(trailing || strncmp(why, "socket: ", 8) == 0);
}
END_TEST

static const char *const no_rules[] = {
    "nobody",
    "uid:",
    "uid:-1",
    "uid:x",
    "uid:4294967295",
    "gid:1 2",
    "user:no-such",
    "group:no-such",
    "* roles=boss",
    "* socket=/c",
    "* mode=600",
    "* tenant=a b",
    "* roles=reader roles=worker",
    "*;;*",
};

START_TEST(test_no_rules)
{
    why[0] = '\0';
    ck_assert_msg(!config_access_parse("/a; /b", no_rules[_i], &got, why), "%s", no_rules[_i]);
    ck_assert_int_eq(strncmp(why, "allow: ", 7), 0);
}
END_TEST

// As lines of a file: each adds to those before, and what is wrong changes nothing.
START_TEST(test_lines_add_up)
{
    struct config config, fresh;
    char differing[64];

    config_init(&config);
    ck_assert(config_set(&config, "socket", "/a", CONFIG_FILE, why));
    ck_assert(config_set(&config, "socket", "/b tenant=t namespaces=" A, CONFIG_FILE, why));
    ck_assert(config_set(&config, "socket", "/b namespaces=" B, CONFIG_FILE, why));
    ck_assert(!config_set(&config, "socket", "/b", CONFIG_FILE, why));
    ck_assert_str_eq(config.sockets, "/a; /b tenant=t namespaces=" A "; /b namespaces=" B);
    ck_assert(config_set(&config, "allow", "uid:7 socket=/c", CONFIG_FILE, why));
    ck_assert(!config_check(&config, why)); // there is no /c
    ck_assert_ptr_nonnull(strstr(why, "no socket /c"));
    ck_assert(config_set(&config, "allow", "uid:7 socket=/a", CONFIG_ARGUMENT, why));
    ck_assert_str_eq(config.allow, "uid:7 socket=/a");
    ck_assert_msg(config_check(&config, why), "%s", why);
    ck_assert(config_change(&config, "allow", "uid:8", why));
    ck_assert(!config_change(&config, "socket", "/z", why));
    config_init(&fresh);
    config_adopt(&config, &fresh, differing, sizeof(differing));
    ck_assert_str_eq(config.allow, "");
    ck_assert_str_eq(differing, "socket");
}
END_TEST

CHECK_MAIN_LOOPS("config/access", CHECK_UNIT_S, {test_a_path_is_enough, 0, 0},
                 {test_a_socket_carries_all, 0, 0}, {test_rules_keep_their_order, 0, 0},
                 {test_no_sockets, 0, sizeof(no_sockets) / sizeof(no_sockets[0]) - 1},
                 {test_no_rules, 0, sizeof(no_rules) / sizeof(no_rules[0]) - 1},
                 {test_lines_add_up, 0, 0})
