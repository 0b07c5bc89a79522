/*
 * Turns of the loop. Everybody is served by one thread, so what comes in any number at once
 * (packets of a client, copies that have ended, blocks that are flushed) is done until it has taken
 * this long, and the rest when the others had their turn.
 */
#ifndef KVC_BASE_TURN_H
#define KVC_BASE_TURN_H

#define TURN_US 50u

#endif
