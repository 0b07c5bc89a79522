/*
 * Rows of the table that nobody needs any more: namespaces without a block, a quota, or a session
 * that has ever registered a part of theirs, with their parts; layouts of no part; tenants with
 * nothing. They are kept, for who comes back, until there is no room for new ones, or nobody has
 * used them for a long time and new ones come.
 */
#ifndef KVC_STORE_ROWS_H
#define KVC_STORE_ROWS_H

#include "daemon/store/state.h"

/*
 * Gives back what it can, of one tenant or of all (TABLE_NONE), but no more than `most` namespaces:
 * each of them is a walk over all parts. Returns how many.
 */
#define ROWS_SOME 16u
uint32_t rows_collect(struct store *store, uint32_t tenant, uint32_t most);

/*
 * The same for a new namespace that is about to come, of those that were not used for
 * KVC_NAMESPACE_IDLE_MS: more go than come, so that models that come and go leave nothing.
 */
#define ROWS_IDLE 2u
void rows_collect_idle(struct store *store);

/*
 * Gives back tenants, of what rows_collect has left. Extents of those who are away and have no
 * block begin to be freed, for the next that comes.
 */
void rows_collect_tenants(struct store *store);

#endif
