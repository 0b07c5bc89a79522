/*
 * Completion pages: memory that one worker writes and the store reads, and the words in it that
 * the store is waiting for. What a worker writes there is believed in one way only: a word equals
 * the number that was issued for it, which proves that everything in front of it has finished.
 */
#ifndef KVC_STORE_PAGE_H
#define KVC_STORE_PAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/list.h"
#include "proto/limits.h"
#include "proto/status.h"

struct owner;
struct page;

enum word_kind { WORD_UNUSED = 0, WORD_CHUNK, WORD_LOAD };

/* One that is waited for. */
struct word {
    uint64_t number;
    uint64_t seen;     /* value that was last read and was not the number */
    uint64_t issued;   /* clock_us */
    uint64_t due;      /* clock_us of the next look, for old ones */
    struct list watch; /* store::young or store::old */
    struct list wait;  /* store::words */
    struct page *page;
    void *object; /* struct chunk or struct load */
    uint16_t next_free;
    uint8_t kind;
};

struct page {
    struct owner *owner;
    int fd;
    uint8_t *memory;
    uint32_t outstanding;
    uint16_t first_free; /* KVC_PAGE_WORDS: none */
    struct word words[KVC_PAGE_WORDS];
};

kvc_status page_create(struct owner *owner, struct page **page);
void page_destroy(
    struct page *page); /* NULL is fine; words that are still waited for are dropped */

/* NULL: all are waited for. The caller puts it into a list to be watched. */
struct word *page_take(struct page *page, enum word_kind kind, void *object, uint64_t number,
                       uint64_t now);

/* Nobody will write it any more, so that it can be taken again. */
void page_give(struct word *word);
uint32_t page_index(const struct word *word);

/* What a gate says: all that was written in front of it can be read. */
uint64_t page_gate(const struct page *page, uint32_t gate);

/* Acquires: when true, what the worker wrote before the word can be read. */
bool page_look(struct word *word, uint64_t *stale);

/* Cell i of a word that has arrived. */
uint64_t page_cell(const struct word *word, uint32_t i);

#endif
