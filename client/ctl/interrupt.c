#include "client/ctl/interrupt.h"

#include <signal.h>
#include <stddef.h>

static const int ends[] = {SIGINT, SIGTERM, SIGHUP};

/* Written by the handler: nothing else can be. */
static volatile sig_atomic_t came;

static void note(int signal)
{
    came = signal;
}

static void set(int signal, void (*handler)(int))
{
    /* Without SA_RESTART: whoever waits for input or a reply is to look. */
    const struct sigaction action = {.sa_handler = handler};

    sigaction(signal, &action, NULL);
}

void interrupt_catch(void)
{
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        set(ends[i], note);
    set(SIGPIPE, SIG_IGN);
}

bool interrupt_came(void)
{
    return came != 0;
}

void interrupt_restore(void)
{
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        set(ends[i], SIG_DFL);
    set(SIGPIPE, SIG_DFL);
}
