#include "tests/gpu/scene.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TEST_S 90

static char folder[64];   // of this run
static char program[512]; // kvcached
static uint64_t seed;

const char *scene_folder(void)
{
    return folder;
}

const char *scene_program(void)
{
    return program;
}

uint64_t scene_seed(void)
{
    return seed;
}

uint64_t scene_now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

void scene_waive(const char *reason)
{
    printf("  %s\n", reason);
    fflush(stdout);
    exit(SCENE_WAIVED);
}

void scene_check(const struct worker *w, int error, const char *what, const char *file, int line)
{
    if (error == 0)
        return;
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, cuda_error_name(&w->driver, error));
    exit(1);
}

void scene_check_kvc(kvc_client *client, kvc_status status, const char *what, const char *file,
                     int line)
{
    if (status == KVC_OK)
        return;
    fprintf(stderr, "%s:%d: %s: %s (%s)\n", file, line, what, kvc_text(status), kvc_error(client));
    exit(1);
}

// Processes.

pid_t scene_fork(scene_play *play, const struct scene_daemon *d, void *arg)
{
    pid_t pid;

    fflush(stdout);
    pid = fork();
    CHECK(pid >= 0);
    if (pid != 0)
        return pid;
    play(d, arg);
    exit(0);
}

int scene_wait(pid_t pid)
{
    int status;

    CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}

void scene_run(scene_play *play, const struct scene_daemon *d, void *arg)
{
    int status = scene_wait(scene_fork(play, d, arg));

    if (WIFEXITED(status) && WEXITSTATUS(status) == SCENE_WAIVED)
        exit(SCENE_WAIVED);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        scene_show_log(d);
        exit(1);
    }
}

static int run_test(const struct scene_test *test)
{
    pid_t pid;
    int status;

    fflush(stdout);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        setpgid(0, 0);
        alarm(test->limit_s != 0 ? test->limit_s : TEST_S);
        test->run();
        exit(0);
    }
    status = scene_wait(pid);
    kill(-pid, SIGKILL); // whatever is left of it
    if (WIFEXITED(status) && WEXITSTATUS(status) == SCENE_WAIVED) {
        printf("WAIVED %s\n", test->name);
        return SCENE_WAIVED;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        printf("PASS %s\n", test->name);
        return 0;
    }
    if (WIFSIGNALED(status))
        printf("  ended by %s\n",
               WTERMSIG(status) == SIGALRM ? "its limit of time" : strsignal(WTERMSIG(status)));
    printf("FAIL %s\n", test->name);
    return 1;
}

// What scripts/run-tests reads, of tests that ran.
static void tell(const struct scene_test *test, int rc)
{
    const char *path = getenv("CK_TAP_LOG_FILE_NAME");
    FILE *tap = path != NULL ? fopen(path, "ae") : NULL;

    if (tap == NULL)
        return;
    // Who sums up counts a test that skips itself by this line (scripts/run-tests).
    if (rc == SCENE_WAIVED)
        printf("SKIP gpu: %s\n", test->name);
    fprintf(tap, "%sok 1 - gpu: %s\n", rc == 0 || rc == SCENE_WAIVED ? "" : "not ", test->name);
    fprintf(tap, "1..1\n");
    fclose(tap);
}

static void find_program(void)
{
    const char *build = getenv("KVC_TEST_BUILD");
    ssize_t n;
    char *at;

    if (build != NULL) {
        snprintf(program, sizeof(program), "%s/kvcached", build);
        return;
    }
    n = readlink("/proc/self/exe", program, sizeof(program) - sizeof("/kvcached"));
    CHECK(n > 0);
    program[n] = '\0';
    at = strstr(program, "/tests/");
    CHECK(at != NULL);
    strcpy(at, "/kvcached");
}

int scene_main(int argc, char **argv, const struct scene_test *tests, size_t n)
{
    int failed = 0, waived = 0, passed = 0;
    char clean[128];

    find_program();
    snprintf(folder, sizeof(folder), "/tmp/kvc-gpu-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    seed = scene_now_us() ^ (uint64_t)getpid() << 32;
    for (size_t i = 0; i < n; i++) {
        int rc;

        if (argc > 1 && strstr(tests[i].name, argv[1]) == NULL)
            continue;
        rc = run_test(&tests[i]);
        tell(&tests[i], rc);
        failed += rc != 0 && rc != SCENE_WAIVED;
        waived += rc == SCENE_WAIVED;
        passed += rc == 0;
    }
    printf("%d passed, %d failed, %d waived\n", passed, failed, waived);
    snprintf(clean, sizeof(clean), "rm -rf %s", folder);
    (void)!system(clean);
    if (failed > 0)
        return 1;
    return passed == 0 && waived > 0 ? SCENE_WAIVED : 0;
}
