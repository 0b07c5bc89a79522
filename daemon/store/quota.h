/*
 * Quotas: which ones are in force. One that was set at run time stands in the slot table and comes
 * before the rules of the configuration, of which that of the namespace comes before that of all.
 */
#ifndef KVC_STORE_QUOTA_H
#define KVC_STORE_QUOTA_H

#include "daemon/store/usage.h"

/* What a namespace is to have; 0: nothing was said of it. */
void quota_of(const struct store *store, uint32_t namespace_, struct store_quota *quota);

#endif
