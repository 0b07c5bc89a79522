#include "daemon/store/page.h"

#include <assert.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "daemon/base/fault.h"
#include "daemon/base/fd.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/store/owner.h"

#define PAGE_BYTES ((size_t)KVC_PAGE_WORDS * KVC_PAGE_STRIDE)
#define WORD_NONE  KVC_PAGE_WORDS

static_assert(KVC_PAGE_CELLS >= KVC_CHUNK_BLOCKS, "a chunk's block has no cell");
static_assert(KVC_PAGE_CELLS * 8 <= KVC_PAGE_WORD_OFFSET, "cells run into the word");

static kvc_status make_memory(struct page *page)
{
    void *memory;
    int error;

    page->fd = fd_memfd("kvcache-page", 0);
    if (page->fd < 0) {
        log_error("store", "no completion page error=%d", -page->fd);
        return KVC_E_NO_FDS;
    }
    error = fd_truncate(page->fd, PAGE_BYTES);
    if (error == 0)
        error = fd_seal(page->fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    if (error == 0)
        error = fd_map(page->fd, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, 0, &memory);
    if (error != 0) {
        log_error("store", "no completion page error=%d", -error);
        fd_reset(&page->fd);
        return KVC_E_SYSTEM;
    }
    page->memory = memory;
    return KVC_OK;
}

kvc_status page_create(struct owner *owner, struct page **ret)
{
    struct page *page = mem_zalloc(sizeof(*page));
    kvc_status status;

    if (!page)
        return KVC_E_NO_MEMORY;
    page->owner = owner;
    status = make_memory(page);
    if (status != KVC_OK) {
        mem_free(page);
        return status;
    }
    for (uint32_t i = 0; i < KVC_PAGE_WORDS; i++) {
        page->words[i].page = page;
        page->words[i].next_free = (uint16_t)(i + 1);
        list_init(&page->words[i].watch);
        list_init(&page->words[i].wait);
    }
    *ret = page;
    return KVC_OK;
}

void page_destroy(struct page *page)
{
    const struct store_events *events;

    if (!page)
        return;
    events = &page->owner->store->config.events;
    for (uint32_t i = 0; i < KVC_PAGE_WORDS; i++) {
        list_remove(&page->words[i].watch);
        list_remove(&page->words[i].wait);
    }
    if (events->page_free) {
        events->page_free(events->ctx, page->memory, PAGE_BYTES, page->fd);
    } else {
        fd_unmap(page->memory, PAGE_BYTES);
        fd_close(page->fd);
    }
    mem_free(page);
}

uint32_t page_index(const struct word *word)
{
    return (uint32_t)(word - word->page->words);
}

static uint8_t *entry(const struct word *word)
{
    return word->page->memory + (size_t)page_index(word) * KVC_PAGE_STRIDE;
}

static uint64_t word_value(const struct word *word)
{
    return __atomic_load_n((uint64_t *)(entry(word) + KVC_PAGE_WORD_OFFSET), __ATOMIC_ACQUIRE);
}

uint64_t page_gate(const struct page *page, uint32_t gate)
{
    const uint8_t *at = page->memory + (size_t)gate * KVC_PAGE_STRIDE + KVC_PAGE_GATE_OFFSET;

    assert(gate < KVC_PAGE_GATES);
    return __atomic_load_n((const uint64_t *)(const void *)at, __ATOMIC_ACQUIRE);
}

struct word *page_take(struct page *page, enum word_kind kind, void *object, uint64_t number,
                       uint64_t now)
{
    struct word *word;

    if (page->first_free == WORD_NONE || fault_fires("store.word"))
        return NULL;
    word = &page->words[page->first_free];
    assert(word->kind == WORD_UNUSED && kind != WORD_UNUSED);
    page->first_free = word->next_free;
    page->outstanding++;
    word->kind = (uint8_t)kind;
    word->object = object;
    word->number = number;
    word->issued = now;
    word->seen = word_value(word);
    return word;
}

void page_give(struct word *word)
{
    struct page *page = word->page;

    assert(word->kind != WORD_UNUSED && page->outstanding > 0);
    list_remove(&word->watch);
    list_remove(&word->wait);
    word->kind = WORD_UNUSED;
    word->object = NULL;
    word->next_free = page->first_free;
    page->first_free = (uint16_t)page_index(word);
    page->outstanding--;
}

bool page_look(struct word *word, uint64_t *stale)
{
    uint64_t value = word_value(word);

    if (value == word->number)
        return true;
    if (value != word->seen) {
        word->seen = value;
        ++*stale;
    }
    return false;
}

uint64_t page_cell(const struct word *word, uint32_t i)
{
    assert(i < KVC_PAGE_CELLS);
    return __atomic_load_n((uint64_t *)entry(word) + i, __ATOMIC_RELAXED);
}
