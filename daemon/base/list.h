// An intrusive doubly linked list. The head is a `struct list` that is no element; an element that
// is in no list points to itself, so removing it again is harmless.
#ifndef KVC_DAEMON_BASE_LIST_H
#define KVC_DAEMON_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *prev, *next;
};

// The object of `type` that holds *ptr as its `member`.
#define container_of(ptr, type, member)                                                            \
    ((type *)((char *)(1 ? (ptr) : &((type *)0)->member) - offsetof(type, member)))

static inline void list_init(struct list *l)
{
    l->prev = l->next = l;
}

static inline bool list_empty(const struct list *l)
{
    return l->next == l;
}

// Whether an initialised element is in a list.
static inline bool list_linked(const struct list *element)
{
    return element->next != element;
}

static inline void list_insert_before(struct list *at, struct list *element)
{
    element->prev = at->prev;
    element->next = at;
    at->prev->next = element;
    at->prev = element;
}

static inline void list_push_back(struct list *head, struct list *element)
{
    list_insert_before(head, element);
}

static inline void list_push_front(struct list *head, struct list *element)
{
    list_insert_before(head->next, element);
}

static inline void list_remove(struct list *element)
{
    element->prev->next = element->next;
    element->next->prev = element->prev;
    list_init(element);
}

// Takes the element out of the list that it is in, if any, and puts it at the end of this one.
static inline void list_move_back(struct list *head, struct list *element)
{
    list_remove(element);
    list_push_back(head, element);
}

// Moves all elements of `from` to the end of `head`; `from` is empty afterwards.
static inline void list_splice_back(struct list *head, struct list *from)
{
    if (list_empty(from))
        return;
    from->next->prev = head->prev;
    head->prev->next = from->next;
    from->prev->next = head;
    head->prev = from->prev;
    list_init(from);
}

// O(n); for tests and statistics.
static inline size_t list_length(const struct list *head)
{
    size_t n = 0;

    for (const struct list *l = head->next; l != head; l = l->next)
        n++;
    return n;
}

// NULL when the list is empty.
#define list_first(head, type, member)                                                             \
    (list_empty(head) ? NULL : container_of((head)->next, type, member))

#define list_for_each(it, head, member)                                                            \
    for ((it) = container_of((head)->next, __typeof__(*(it)), member); &(it)->member != (head);    \
         (it) = container_of((it)->member.next, __typeof__(*(it)), member))

// As above; the body may remove *it (and nothing else) from the list.
#define list_for_each_safe(it, after, head, member)                                                \
    for ((it) = container_of((head)->next, __typeof__(*(it)), member),                             \
        (after) = container_of((it)->member.next, __typeof__(*(it)), member);                      \
         &(it)->member != (head);                                                                  \
         (it) = (after), (after) = container_of((it)->member.next, __typeof__(*(it)), member))

#endif
