// Ports of loopback, for what is to listen later and must be known before.
#ifndef KVC_TESTS_LIB_PORT_H
#define KVC_TESTS_LIB_PORT_H

// A port that nobody listens on now, and that no other test program on this machine takes as long
// as this one runs. None is given twice to one test.
int port_take(void);

// For check_main, before the first test.
void port_open(void);

#endif
