#include "daemon/api/discard.h"

#include <assert.h>

#include "daemon/base/fd.h"
#include "daemon/base/list.h"
#include "daemon/base/mem.h"

struct job {
    uv_work_t work;
    void *memory;
    size_t bytes;
    int fd;
};

static void work(uv_work_t *request)
{
    const struct job *job = container_of(request, struct job, work);

    fd_unmap(job->memory, job->bytes);
    fd_close(job->fd);
}

static void done(uv_work_t *request, int cancelled)
{
    (void)cancelled; /* nobody cancels it */
    mem_free(container_of(request, struct job, work));
}

void discard(uv_loop_t *loop, void *memory, size_t bytes, int fd)
{
    struct job *job = mem_alloc(sizeof(*job));
    int error;

    if (job == NULL) {
        fd_unmap(memory, bytes);
        fd_close(fd);
        return;
    }
    *job = (struct job){.memory = memory, .bytes = bytes, .fd = fd};
    error = uv_queue_work(loop, &job->work, work, done);
    assert(error == 0); /* it only refuses a NULL function */
    (void)error;
}
