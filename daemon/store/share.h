/*
 * Shares: how much of the tables that all tenants use one of them may take, so that none keeps the
 * others out.
 */
#ifndef KVC_STORE_SHARE_H
#define KVC_STORE_SHARE_H

#include "daemon/store/owner.h"

/*
 * Whether the owner may register a part, which passed all other checks, and the table has the room
 * for it; when KVC_OK, adding it does not fail. KVC_E_LIMIT, KVC_E_NO_ROOM.
 */
kvc_status share_check_part(const struct owner *owner, const struct store_part *part,
                            struct refusal *why);

/* Whether a tenant may have one more session. */
bool share_has_session(const struct store *store, uint32_t tenant);

#endif
