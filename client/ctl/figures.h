/*
 * The daemon's figures as JSON: for status, and for top.
 */
#ifndef KVC_CTL_FIGURES_H
#define KVC_CTL_FIGURES_H

#include "client/admin.h"
#include "client/ctl/field.h"

/* With the lists of status, which the caller puts. */
extern const struct shape figures_shape;

void figures_put(json_t *root, const struct admin_stats *stats);

#endif
