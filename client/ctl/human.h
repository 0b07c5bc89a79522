/*
 * Figures as people read them: sizes, ages, shares, bars. Each writes into text, of HUMAN_MAX
 * bytes, and returns it. All of it is ASCII.
 */
#ifndef KVC_CTL_HUMAN_H
#define KVC_CTL_HUMAN_H

#include <stdbool.h>
#include <stdint.h>

#define HUMAN_MAX 64

const char *human_bytes(double bytes, char *text);                  /* "1.5 GiB" */
const char *human_size(double bytes, char *text);                   /* "1.5G", in tables */
const char *human_age(uint64_t us, char *text);                     /* "350 us", "3 h 4 m" */
const char *human_share(uint64_t part, uint64_t whole, char *text); /* "35.9 %"; "-" of nothing */
const char *human_number(uint64_t n, char *text); /* "12345"; "unknown" of ADMIN_UNKNOWN */
const char *human_count(double n, char *text);    /* "850", "12.3 k": at most six characters */

/* "#####.....": part of whole in so many cells; more than nothing is at least one of them. */
const char *human_bar(uint64_t part, uint64_t whole, int cells, char *text);

/* "4G", and "-4G" too: what is allowed is for others to say. K, M, G, T are powers of 1024. */
bool human_parse_size(const char *text, int64_t *bytes);

#endif
