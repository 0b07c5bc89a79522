/*
 * The jobs of pack.h on a GPU. Nothing here needs CUDA to build or to start: the driver's entry
 * points come from the caller, the device code is embedded as data (see pack_cuda_built).
 *
 * Types of the driver appear as what they are in its binary interface: handles as void *, CUresult
 * as int, device addresses as uint64_t. A function that returns KVC_E_DEVICE has set *error to the
 * driver's CUresult. No function allocates memory, synchronises, or keeps state but in its
 * arguments.
 */
#ifndef KVC_PACK_CUDA_H
#define KVC_PACK_CUDA_H

#include "kernels/pack.h"

/* CUlaunchAttribute and CUlaunchConfig. */
struct pack_cuda_attribute {
    int id;
    int unused;
    union {
        int flag;
        char value[64];
    };
};
struct pack_cuda_config {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    void *stream;
    struct pack_cuda_attribute *attributes;
    unsigned n_attributes;
};

/* Entry points of the driver, found by the caller. */
struct pack_cuda_driver {
    /* cuModuleLoadData, cuModuleUnload, cuModuleGetFunction */
    int (*module_load)(void **module, const void *image);
    int (*module_unload)(void *module);
    int (*module_function)(void **function, void *module, const char *name);
    int (*function_attribute)(int *value, int attribute, void *function); /* cuFuncGetAttribute */
    /* cuCtxGetDevice, cuDeviceGetAttribute, cuOccupancyMaxActiveBlocksPerMultiprocessor */
    int (*context_device)(int *device);
    int (*device_attribute)(int *value, int attribute, int device);
    int (*occupancy)(int *thread_blocks, void *function, int threads, size_t shared_bytes);
    /* cuLaunchKernel */
    int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                  void *stream, void **parameters, void **extra);
    /* cuLaunchKernelEx */
    int (*launch_with)(const struct pack_cuda_config *config, void *function, void **parameters,
                       void **extra);
};

/* One kernel, and how many of its thread blocks run at a time on the device. */
struct pack_cuda_kernel {
    void *function;
    uint32_t thread_blocks;
};

/* The kernels, loaded into one context. */
struct pack_cuda {
    const struct pack_cuda_driver *driver;
    void *module;
    bool chains; /* whether launches may run into each other */
    /* Gather, scatter; without and with checksums; of large and of small slices; of as many blocks
     * and spans as there may be, and of few. */
    struct pack_cuda_kernel kernels[2][2][2][2];
};

/* Whether this build has device code: it was made with nvcc. */
bool pack_cuda_built(void);

/*
 * Loads the kernels into the current context; pack_cuda_close, with that context current, unloads
 * them. KVC_E_UNSUPPORTED without device code. The driver table is the caller's and outlives this.
 */
kvc_status pack_cuda_open(struct pack_cuda *cuda, const struct pack_cuda_driver *driver,
                          int *error);
void pack_cuda_close(struct pack_cuda *cuda);

/*
 * The table of a layout's slices that kernels read. pack_cuda_table_fill writes its
 * pack_cuda_table_bytes bytes, aligned to 8, to host memory; the caller keeps them for
 * pack_cuda_launch and copies them to device memory once. The slices' bases are device addresses.
 */
size_t pack_cuda_table_bytes(uint32_t n_slices);
void pack_cuda_table_fill(void *table, const struct pack_layout *layout,
                          const struct pack_slice *slices);

/*
 * Device memory for the sums of launches, zeroed once by the caller; each launch leaves it zeroed.
 * Launches that may run at the same time (other streams) need their own.
 */
size_t pack_cuda_scratch_bytes(void);

enum pack_cuda_direction {
    PACK_CUDA_GATHER,
    PACK_CUDA_SCATTER,
};

#define PACK_CUDA_BLOCKS 256u /* of a launch: its parameters fit into 4 KiB */
#define PACK_CUDA_SPANS  28u

/* Consecutive blocks of a launch that end together, a chunk for instance. */
struct pack_cuda_span {
    uint32_t n_blocks;
    uint64_t cells;      /* device address of n_blocks 64-bit cells; of all spans, or of none: 0 */
    uint64_t word;       /* device address of a completion word, or 0 */
    uint64_t word_value; /* written behind the span's bytes and cells, seen by the whole system */
};

struct pack_cuda_job {
    enum pack_cuda_direction direction;
    const struct pack_layout *layout;
    const void *table;               /* host copy */
    uint64_t device_table;           /* the same bytes on the device */
    const struct pack_block *blocks; /* slots are device addresses; copied by the call */
    uint32_t n_blocks;               /* at most PACK_CUDA_BLOCKS */
    uint32_t first_slice, n_slices;
    const struct pack_cuda_span *spans; /* all blocks, in order; or none: no cells, no words */
    uint32_t n_spans;                   /* at most PACK_CUDA_SPANS */
    uint64_t scratch;                   /* device address; needed for spans */
    bool far; /* whether any byte may go to other memory than this GPU's own */
    /* The next thing on the stream is a launch of the same copy, of other blocks, which then
     * follows and may begin before this one has ended, unless thread blocks are limited. */
    bool more, follows;
    uint32_t max_thread_blocks; /* 0: as many as are good */
};

/*
 * Puts one launch on the stream. A job of no blocks or slices launches nothing, unless it has
 * spans: their cells and words are written in stream order. Words of a launch are written in any
 * order. Cells and words may lie in registered host memory. When it fails nothing was put on the
 * stream.
 */
kvc_status pack_cuda_launch(const struct pack_cuda *cuda, const struct pack_cuda_job *job,
                            void *stream, int *error);

#endif
