// A process that a test leads through a scene step by step: the scene stops itself (SIGSTOP) where
// the test is to look at it, kill it, or let it go on. Pause points of the debug library
// (client/pause.h) stop it in the middle of a call.
//
//     static void mid_save(struct scene *s)
//     {
//         engine_open(&s->engine, s->socket);
//         pause_arm("save.before_word", 1);
//         engine_save(&s->engine, 100, 4);
//     }
//     struct actor a = actor_start(mid_save, socket);
//     actor_until_stop(&a);
//     ... actor_kill(&a);
#ifndef KVC_TESTS_LIB_ACTOR_H
#define KVC_TESTS_LIB_ACTOR_H

#include <sys/types.h>

#include "tests/lib/engine.h"

// Of the actor; what it shares with the test is in `told`, which both may write.
struct scene {
    const char *socket;
    struct engine engine;
    struct told {
        uint64_t values[8];
        uint8_t token[KVC_TOKEN_BYTES];
        pid_t child;
    } * told;
    int number; // what actor_start_numbered() was given
};

typedef void scene_fn(struct scene *scene);

struct actor {
    pid_t pid;
    struct told *told;
};

// The actor has no socket of the test's; it exits with status 0 when the scene is over.
struct actor actor_start(scene_fn *play, const char *socket);
struct actor actor_start_numbered(scene_fn *play, const char *socket, int number);

// For scenes: stops here.
void actor_stop(void);

// Waits until it has stopped; fails the test when it ended instead.
void actor_until_stop(const struct actor *a);
void actor_continue(const struct actor *a);

// Waits until it has ended with status 0.
void actor_end(struct actor *a);
// kill -9, and reaped.
void actor_kill(struct actor *a);
// kill -9 without waiting for anything; actor_kill() must follow.
void actor_strike(const struct actor *a);

// Becomes another user of the machine, for which it must be root.
#define ACTOR_SOMEBODY_ELSE 65534u
void actor_become_somebody_else(void);

#endif
