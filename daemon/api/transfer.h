/*
 * Transfers: saves and loads whose bytes the daemon copies itself. A transfer is what the store
 * calls a save or a load, cut into chunks that wait for their turn in the copier; it ends when the
 * last of them has ended. It keeps the regions that it uses mapped until then.
 */
#ifndef KVC_API_TRANSFER_H
#define KVC_API_TRANSFER_H

#include "daemon/api/session.h"

struct transfer;

bool transfer_is_asked(const struct msg_save *save);
/* A gate to wait for, of a request whose bytes the daemon copies or does not. */
kvc_status transfer_check_gate(const struct session *session, const struct msg_gate *gate,
                               bool by_daemon, struct refusal *why);

/*
 * Checks regions and block ids of a save, or of more slices of one, and takes them into use;
 * changes nothing else.
 */
kvc_status transfer_prepare_save(struct session *session, const struct msg_save *save,
                                 struct transfer **transfer, struct refusal *why);
/* Starts the copies of a call, with what the store said to it; with nothing to copy: ends it. */
void transfer_start_save(struct transfer *transfer, struct save *save,
                         const struct store_save_result *result);
void transfer_abandon(struct transfer *transfer); /* one that was not started; NULL is fine */

/* What a LOAD asks of the store, whoever copies. */
struct store_load transfer_load_of(const struct msg_load *load);
/* LOAD by the daemon: answered when the bytes are there. */
handler transfer_load;

/* A save has been aborted, or its session has ended: what has not begun does not begin. */
void transfer_cancel_save(struct session *session, uint64_t save);
/* The load that came as request `load_seq` is cancelled; false: there is none. Both requests are
 * answered when its copies have ended. */
bool transfer_cancel_load(struct session *session, uint32_t load_seq, uint32_t abort_seq);
void transfer_forget_session(struct session *session);

#endif
