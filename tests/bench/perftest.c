#include "tests/bench/perftest.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT  "37410"
#define TOTAL (768ull << 20) // bytes of a measurement

static pid_t serve(void)
{
    pid_t server = fork();

    if (server != 0)
        return server;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (freopen("/dev/null", "w", stdout) == NULL || freopen("/dev/null", "w", stderr) == NULL)
        _exit(127);
    setenv("UCX_TLS", "tcp", 1);
    execlp("ucx_perftest", "ucx_perftest", "-p", PORT, "-c", "0", NULL);
    _exit(127);
}

double perftest_rate(uint64_t bytes)
{
    const unsigned long long n = TOTAL / bytes > 2 ? TOTAL / bytes : 2;
    char command[256], line[256];
    double rate = 0;
    pid_t server = serve();
    FILE *pipe;

    usleep(300000);
    snprintf(command, sizeof(command),
             "UCX_TLS=tcp ucx_perftest -p " PORT " 127.0.0.1 -c 1 -t ucp_am_bw -s %llu -n %llu "
             "-w %d -f 2>&1",
             (unsigned long long)bytes, n, n > 8 ? 8 : 1);
    pipe = popen(command, "r");
    while (pipe != NULL && fgets(line, sizeof(line), pipe) != NULL) {
        double column[5];

        if (sscanf(line, "%lf %lf %lf %lf %lf", &column[0], &column[1], &column[2], &column[3],
                   &column[4]) == 5)
            rate = column[4] * 1048576;
    }
    if (pipe != NULL)
        pclose(pipe);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    return rate;
}
