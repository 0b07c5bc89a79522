# kvcached: GNU make. Every room (folder) becomes one archive of objects, so a new file needs no
# line here; a folder under daemon/ is a new room. `make help` lists the targets.

VERSION := 0.1.0
PREFIX  ?= /usr/local
DESTDIR ?=
# Under PREFIX; Debian's is lib/x86_64-linux-gnu.
LIBDIR  ?= lib
UNITDIR ?= $(PREFIX)/lib/systemd/system
# Where the service's configuration is; an installed one is never written over.
SYSCONFDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/etc,$(PREFIX)/etc)

# Sanitizers to build the debug variant with, e.g. SAN=address,undefined or SAN=thread.
SAN ?=

MAKEFLAGS += --no-builtin-rules --no-print-directory
SHELL     := /bin/bash
.DELETE_ON_ERROR:
.SECONDARY:
.SUFFIXES:

ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(origin AR),default)
AR := gcc-ar
endif
CCACHE   ?= $(shell command -v ccache 2>/dev/null)
PROTOC_C ?= protoc-c
OBJCOPY  ?= objcopy
# With nvcc, the kernels for GPUs are built in, as data; running them needs only the driver.
NVCC     ?= $(shell command -v nvcc 2>/dev/null)

# Libraries that are not installed: a folder into which packages with them, and the compiler of
# protobuf-c, were unpacked (dpkg -x).
DEPS ?=
ifneq ($(DEPS),)
DEPS_LIB   := $(firstword $(wildcard $(abspath $(DEPS))/usr/lib/*-linux-gnu) $(abspath $(DEPS))/usr/lib)
DEPS_FLAGS := -isystem $(abspath $(DEPS))/usr/include
DEPS_LINK  := -L$(DEPS_LIB) -Wl,-rpath,$(DEPS_LIB)
PROTOC_C   := LD_LIBRARY_PATH=$(DEPS_LIB) $(abspath $(DEPS))/usr/bin/protoc-c
DEPS_PKG   := PKG_CONFIG_PATH=$(DEPS_LIB)/pkgconfig PKG_CONFIG_SYSROOT_DIR=$(abspath $(DEPS))
endif

pkg_cflags = $(shell $(DEPS_PKG) pkg-config --cflags $(1) 2>/dev/null)
pkg_libs   = $(shell $(DEPS_PKG) pkg-config --libs $(1) 2>/dev/null || echo $(addprefix -l,$(patsubst lib%,%,$(1))))

# Transfers between daemons are built in where the headers of UCX and of what goes with it are; the
# library itself is found at run time. `make UCX=` does without.
has_header = $(wildcard $(DEPS:%=%/usr/include/$(1)) /usr/include/$(1) /usr/local/include/$(1))
UCX       ?= $(and $(call has_header,ucp/api/ucp.h),$(call has_header,nettle/hmac.h),yes)
DIRECTORY ?= $(and $(UCX),$(call has_header,hiredis/async.h),yes)
# Metrics over HTTP likewise: `make METRICS=` does without.
METRICS   ?= $(and $(call has_header,microhttpd.h),yes)
PEER_PKGS := $(if $(UCX),nettle) $(if $(DIRECTORY),hiredis)

DAEMON_PKGS := libuv libprotobuf-c libxxhash inih $(PEER_PKGS) $(if $(METRICS),libmicrohttpd)
CLIENT_PKGS := libprotobuf-c libxxhash
CTL_PKGS    := $(CLIENT_PKGS) jansson
TEST_PKGS   := $(sort $(DAEMON_PKGS) $(if $(call has_header,nettle/sha2.h),nettle)) jansson check
PKG_CFLAGS  := $(call pkg_cflags,$(TEST_PKGS))

WARNINGS := -Wall -Wextra -Werror -Wvla -Wmissing-prototypes -Wstrict-prototypes \
            -Wimplicit-fallthrough
# Everything is position independent with hidden symbols: one object serves the daemon, the static
# and the shared library, and what the library exports is what is marked for it.
COMPILE_FLAGS = -D_GNU_SOURCE -DKVC_IN_TREE=1 -DKVC_BUILD_VERSION='"$(VERSION)"' \
                $(if $(UCX),-DKVC_UCX=1) $(if $(DIRECTORY),-DKVC_DIRECTORY=1) \
                $(if $(METRICS),-DKVC_METRICS=1) \
                -I. -isystem build/gen $(DEPS_FLAGS) $(PKG_CFLAGS) $(CPPFLAGS) \
                -std=gnu11 -g -fPIC -fvisibility=hidden -pthread -MD -MP
LINK_FLAGS    = -pthread -Wl,--as-needed -Wl,-z,relro,-z,now $(DEPS_LINK) $(LDFLAGS)

# The user's CPPFLAGS, CFLAGS and LDFLAGS come last.
RELEASE       := build
RELEASE_FLAGS := -O2 $(CFLAGS)
DEBUG         := build/debug$(if $(SAN),-$(SAN))
DEBUG_FLAGS   := -O1 -fno-omit-frame-pointer -DKVC_DEBUG=1 \
                 $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all) $(CFLAGS)

# V=1 shows the commands.
V ?=
quiet = $(if $(V),,@echo "  $(1)	$@";)

# ---------------------------------------------------------------- what there is

sources      = $(sort $(wildcard $(1)/*.c))
room_sources = $(filter-out $(1)/main.c,$(call sources,$(1)))
with_sources = $(strip $(foreach r,$(1),$(if $(call room_sources,$(r)),$(r))))

SHARED_ROOMS  := proto kernels
DAEMON_ROOMS  := $(call with_sources,daemon $(patsubst %/,%,$(sort $(wildcard daemon/*/))))
CLIENT_ROOMS  := client
CTL_ROOMS     := client/ctl
PRODUCT_ROOMS := $(SHARED_ROOMS) $(DAEMON_ROOMS) $(CLIENT_ROOMS) $(CTL_ROOMS)
ALL_ROOMS     := $(PRODUCT_ROOMS) tests/lib

TEST_KINDS   := unit wire life fault
# Tests of what is left out of the build are, too.
LEFT_OUT     := $(if $(UCX),,$(foreach k,$(TEST_KINDS),tests/$(k)/test_peer_%.c) tests/fuzz/fuzz_peer.c) \
                $(if $(DIRECTORY),,tests/life/test_peer_directory.c) \
                $(if $(METRICS),,$(addprefix tests/life/,test_metrics.c test_health.c test_peer_metrics.c))
# Of memory of GPUs and nothing else: only among the lines below.
GPU_ONLY     := tests/life/test_peer_direct.c tests/life/test_peer_staging.c
TEST_SOURCES := $(filter-out $(LEFT_OUT) $(GPU_ONLY),$(foreach k,$(TEST_KINDS),$(sort $(wildcard tests/$(k)/test_*.c))))
FUZZ_SOURCES := $(filter-out $(LEFT_OUT),$(sort $(wildcard tests/fuzz/fuzz_*.c)))
TESTS        := $(patsubst %.c,$(DEBUG)/%,$(TEST_SOURCES) $(FUZZ_SOURCES))
PY_TESTS     := $(sort $(wildcard tests/python/test_*.py))
DEB_TESTS    := $(sort $(wildcard tests/deb/test_*.py))
BENCHES      := $(patsubst %.c,$(RELEASE)/%,$(sort $(wildcard tests/bench/*_bench.c)))
PROBE        := $(RELEASE)/tests/bench/lookup_probe
# Of the kernels alone, and of a daemon with its workers. FAKE_GPU is a driver without a GPU.
GPU_KERNELS  := $(patsubst %.c,$(RELEASE)/%,$(sort $(wildcard tests/gpu/*_pack_gpu.c)))
GPU_DAEMONS  := $(patsubst %.c,$(RELEASE)/%,$(sort $(wildcard tests/gpu/*_daemon_gpu.c)))
# Of a library that was built without nvcc.
BARE         := test_bare_daemon_gpu
GPU_TESTS    := $(filter $(RELEASE)/tests/gpu/test_%,$(GPU_KERNELS) $(GPU_DAEMONS))
GPU_BENCHES  := $(filter $(RELEASE)/tests/gpu/bench_%,$(GPU_KERNELS) $(GPU_DAEMONS))
# With torch: the tests and benchmarks of client/python.
PYTHON       ?= python3
GPU_PY_TESTS := $(sort $(wildcard tests/gpu/test_*.py))
# Those of serving engines take long: bench-serve. What each does there with QUICK=1.
SERVE         := serving batch vllm
QUICK_serving := --rounds 2 0.5B
QUICK_batch   := --workload warm16,overflow,verify,break --ways none,own,kvcached --requests 100 0.5B
QUICK_vllm    := --hits 0.5B
GPU_PY_BENCH  := $(filter-out $(SERVE:%=tests/gpu/bench_%.py),$(sort $(wildcard tests/gpu/bench_*.py)))
GPU_PY_NEEDS := $(addprefix $(RELEASE)/,kvcached kvcachectl libkvcache.so.0)
FAKE         := $(RELEASE)/tests/gpu/fake
FAKE_GPU     := $(addprefix $(FAKE)/,libcuda.so.1 libnvidia-ml.so.1)
# In front of the system's UCX, where that can be linked.
FAKE_UCX     := $(if $(UCX),$(FAKE)/libucp-gpu.so.0)
FAKE_TESTS   := $(patsubst $(RELEASE)/tests/gpu/%,$(FAKE)/%,$(filter $(GPU_DAEMONS),$(GPU_TESTS)))

# Tests of the daemon's lines that run on the host device and again, unchanged, on a GPU, and on the
# driver without one (KVC_TEST_DEVICE, tests/lib/gpu.h).
LINES       := $(addprefix life/test_,client_roundtrip copy_daemon copy_end engine_calls slices tiers) \
               $(if $(UCX),$(patsubst tests/%.c,%,$(GPU_ONLY)))
GPU_LINES   := $(if $(call has_header,check.h),$(LINES:%=$(DEBUG)/tests/%))
FAKE_DEBUG  := $(DEBUG)/fake
FAKE_LINES  := $(LINES:%=$(FAKE_DEBUG)/tests/%)
COMPUTE_SANITIZER ?= $(or $(shell command -v compute-sanitizer 2>/dev/null),/usr/local/cuda/bin/compute-sanitizer)
SANITIZER   ?= memcheck

GENERATED   := build/gen/proto/kvcache.pb-c.c
GEN_HEADERS := $(GENERATED:.c=.h)

PRODUCTS := kvcached kvcachectl libkvcache.so.0 libkvcache.so libkvcache.a

# The public headers as they are installed: <kvcache.h>, and what it includes.
HEADERS := $(addprefix build/include/,kvcache.h kvcache/limits.h kvcache/status.h)

# Each manual page has its source, NAME.SECTION.in, beside what it is about.
MAN_SOURCES := $(foreach r,daemon $(CLIENT_ROOMS) $(CTL_ROOMS),$(wildcard $(r)/*.[1-8].in))
MAN_PAGES   := $(patsubst %.in,build/man/%,$(notdir $(MAN_SOURCES)))
COMPLETION  := build/completion/kvcachectl

# $(1) is the folder of a build variant.
objects = $(patsubst %.c,$(1)/obj/%.o,$(2))
archive = $(1)/rooms/$(subst /,_,$(2)).a
gen_obj = $(1)/obj/gen/kvcache.pb-c.o
rooms   = $(foreach r,$(2),$(call archive,$(1),$(r))) $(call gen_obj,$(1))
library = $(foreach r,$(CLIENT_ROOMS) $(SHARED_ROOMS),$(call objects,$(1),$(call room_sources,$(r)))) \
          $(call gen_obj,$(1))

# Fuzzing takes clang: targets of their own names beside the tests, in a variant of their own.
FUZZ_CC  ?= clang-14
FUZZ_SAN := fuzzer-no-link,address,undefined
FUZZERS  := $(patsubst tests/fuzz/%.c,$(DEBUG)/fuzz/%,$(FUZZ_SOURCES))
TIME     ?= 60

# Without -j from the caller, the long targets use every core.
JOBS = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc))

# ---------------------------------------------------------------- targets

.PHONY: check-gpu-lines check-gpu-sanitizer
.PHONY: all man debug tests check check-now check-long check-layers check-gpu demo
.PHONY: check-fake-gpu check-deb deb bench bench-pack bench-gpu bench-serve setup help clean install
.PHONY: fuzz fuzzers lint soak

all: $(addprefix $(RELEASE)/,$(PRODUCTS)) $(HEADERS) man $(COMPLETION) ## build the daemon, the tool, the libraries and their manual into build/

man: $(MAN_PAGES) ## write the manual pages into build/man/

debug: $(addprefix $(DEBUG)/,$(PRODUCTS)) ## the same with assertions, fault switches and a movable clock

tests: debug $(TESTS) ## build the test programs

check: ## install what is missing, build, run the tests that need no GPU
	@scripts/setup
	@$(MAKE) $(JOBS) check-now

# Those of GPUs run on the driver without one, but not under sanitizers, which want other addresses.
QUICK_FAKE := $(if $(SAN),,$(filter-out %/test_killed_daemon_gpu,$(FAKE_TESTS)))

QUICK_FAKE += $(if $(SAN),,$(filter $(addprefix %/test_,copy_daemon copy_end tiers peer_direct peer_staging),$(FAKE_LINES)))

check-now: check-layers all tests $(QUICK_FAKE) $(if $(QUICK_FAKE),$(FAKE_GPU) $(FAKE_UCX))
	@scripts/check-names.sh $(DEBUG)/rooms
	@scripts/run-tests --build $(DEBUG) $(if $(SAN),--slow) $(TESTS) $(QUICK_FAKE) $(PY_TESTS)

check-long: ## the tests in their long form, then under valgrind and the sanitizers
	@scripts/setup --dev
	@KVC_TEST_LONG=1 $(MAKE) $(JOBS) check-now
	@$(MAKE) $(JOBS) check-fake-gpu
	@scripts/run-tests --build $(DEBUG) --valgrind $(filter $(DEBUG)/tests/life/%,$(TESTS))
	@$(MAKE) $(JOBS) check-now SAN=address,undefined
	@$(MAKE) $(JOBS) check-now SAN=thread

check-layers: ## check that every file includes only its own level or a lower one
	@scripts/check-layers.sh

demo: ## install what is missing, build, run the main job once and print a table
	@scripts/setup
	@$(MAKE) $(JOBS) all
	@scripts/demo

fuzz: ## run each fuzz target for TIME seconds (60), with clang and libFuzzer
	@scripts/setup --dev
	@$(MAKE) $(JOBS) CC=$(FUZZ_CC) SAN=$(FUZZ_SAN) fuzzers
	@scripts/fuzz build/debug-$(FUZZ_SAN)/fuzz $(TIME)

fuzzers: $(FUZZERS)

lint: $(GEN_HEADERS) ## clang-tidy, cppcheck and gcc -fanalyzer over the product's sources
	@scripts/setup --dev
	@scripts/lint $(filter-out -MD -MP -g,$(COMPILE_FLAGS)) -DKVC_DEBUG=1 -DKVC_LINT=1

soak: TIME := $(if $(filter-out file,$(origin TIME)),$(TIME),3600)
soak: all $(PROBE) ## everything at once for TIME seconds (3600), and nothing may grow, be wrong or slow
	@scripts/soak $(RELEASE) $(TIME) $(if $(LOAD),--load $(LOAD))

bench: all $(BENCHES) ## measure: packing beside memcpy, the store, round trips beside a bare echo
	@for b in $(BENCHES); do echo "$${b##*/}"; $$b || exit 1; done
	@for n in 100000 1000000; do echo "kvcachectl bench"; $(RELEASE)/kvcachectl bench --blocks $$n || exit 1; done

bench-pack: $(RELEASE)/tests/bench/pack_bench ## measure packing on the host against memcpy
	@$<

check-gpu: $(GPU_TESTS) $(GPU_PY_NEEDS) $(if $(GPU_LINES),$(DEBUG)/kvcached $(GPU_LINES)) ## run the tests that need a GPU (waived where there is none)
	@rc=0; for t in $(GPU_TESTS) $(GPU_PY_TESTS:%='$(PYTHON) %'); do $$t || [ $$? -eq 77 ] || rc=1; done; \
	scripts/check-gpu-lines $(DEBUG) $(GPU_LINES) || rc=1; exit $$rc

check-gpu-lines: $(if $(GPU_LINES),$(DEBUG)/kvcached $(GPU_LINES))
	@scripts/check-gpu-lines $(DEBUG) $(GPU_LINES)

check-gpu-sanitizer: $(GPU_TESTS) ## the kernels, and a scene of each way to copy, under compute-sanitizer (SANITIZER=memcheck, racecheck)
	@rc=0; waived=0; run() { echo "$(SANITIZER) $$*"; $(COMPUTE_SANITIZER) --tool $(SANITIZER) \
	    --target-processes all --error-exitcode 99 "$$@"; \
	    case $$? in 0) ;; 77) waived=1 ;; *) rc=1 ;; esac; }; \
	run $(RELEASE)/tests/gpu/test_pack_gpu; \
	run $(RELEASE)/tests/gpu/test_daemon_gpu "saved by one"; \
	run $(RELEASE)/tests/gpu/test_lend_daemon_gpu "lent by a handle"; \
	case $$rc$$waived in 00) echo "$(SANITIZER): clean" ;; 01) echo "$(SANITIZER): WAIVED" ;; \
	    *) echo "$(SANITIZER): NOT clean" ;; esac; exit $$rc

check-fake-gpu: $(FAKE_TESTS) $(FAKE_GPU) $(FAKE_UCX) $(FAKE_LINES) ## the same on a driver without a GPU
	@KVC_TEST_LONG=1 scripts/run-tests --build $(RELEASE) $(FAKE_TESTS) $(FAKE_LINES)

bench-gpu: $(GPU_BENCHES) $(GPU_PY_NEEDS) ## measure packing on the GPU against one copy, and with torch what engines see
	@for b in $(GPU_BENCHES) $(GPU_PY_BENCH:%='$(PYTHON) %'); do $$b || [ $$? -eq 77 ] || exit 1; done

bench-serve: $(GPU_PY_NEEDS) ## what saving costs serving engines on a GPU (vLLM too, where it is), and what a hit is worth (QUICK=1, TRACE=FILE)
	@set -e; $(foreach b,$(SERVE),$(PYTHON) tests/gpu/bench_$b.py $(if $(filter batch vllm,$b),$(TRACE:%=--trace %)) \
	    $(if $(QUICK),$(QUICK_$b)) || [ $$? -eq 77 ];)

setup: ## install the packages that are missing
	@scripts/setup

# make t/unit/test_base_list [ARGS=test_name] builds one test program and runs it.
.PHONY: FORCE
t/%: $(DEBUG)/tests/% debug FORCE
	@CK_VERBOSITY=$${CK_VERBOSITY:-verbose} $< $(ARGS)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' Makefile
	@echo "  make t/unit/NAME    build and run one test program (ARGS=test_name runs one test)"
	@echo "  SAN=address,undefined or SAN=thread: the debug build and the tests under sanitizers"

clean: ## remove build/
	rm -rf build

install: all ## install under $(DESTDIR)$(PREFIX)
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,bin $(LIBDIR)/pkgconfig include/kvcache)
	install -m 755 $(RELEASE)/kvcached $(RELEASE)/kvcachectl $(DESTDIR)$(PREFIX)/bin
	install -m 755 $(RELEASE)/libkvcache.so.0 $(DESTDIR)$(PREFIX)/$(LIBDIR)
	ln -sf libkvcache.so.0 $(DESTDIR)$(PREFIX)/$(LIBDIR)/libkvcache.so
	install -m 644 $(RELEASE)/libkvcache.a $(DESTDIR)$(PREFIX)/$(LIBDIR)
	install -m 644 build/include/kvcache.h $(DESTDIR)$(PREFIX)/include
	install -m 644 build/include/kvcache/*.h $(DESTDIR)$(PREFIX)/include/kvcache
	sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@VERSION@|$(VERSION)|g' -e 's|@LIBDIR@|$(LIBDIR)|g' \
	    client/libkvcache.pc.in > $(DESTDIR)$(PREFIX)/$(LIBDIR)/pkgconfig/libkvcache.pc
	install -d $(DESTDIR)$(UNITDIR) $(addprefix $(DESTDIR)$(PREFIX)/lib/,sysusers.d tmpfiles.d)
	sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@SYSCONFDIR@|$(SYSCONFDIR)|g' systemd/kvcached.service.in | \
	    install -m 644 /dev/stdin $(DESTDIR)$(UNITDIR)/kvcached.service
	install -m 644 systemd/kvcached.socket $(DESTDIR)$(UNITDIR)
	install -m 644 systemd/kvcached.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/kvcached.conf
	install -m 644 systemd/kvcached.tmpfiles $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/kvcached.conf
	install -d $(DESTDIR)$(SYSCONFDIR)/kvcached
	[ -e $(DESTDIR)$(SYSCONFDIR)/kvcached/kvcached.conf ] || \
	    install -m 644 systemd/kvcached.conf $(DESTDIR)$(SYSCONFDIR)/kvcached
	install -D -m 644 $(COMPLETION) \
	    $(DESTDIR)$(PREFIX)/share/bash-completion/completions/kvcachectl
	for p in $(MAN_PAGES); do \
	    install -D -m 644 $$p $(DESTDIR)$(PREFIX)/share/man/man$${p##*.}/$${p##*/} || exit 1; done

deb: ## build Debian packages (kvcached, libkvcache0, libkvcache-dev) into build/deb/
	@scripts/setup --deb
	@scripts/make-deb build/deb $(VERSION)

check-deb: deb ## build the packages, then lint, install, run and remove them
	@KVC_TEST_TIMEOUT_MULTIPLIER=4 scripts/run-tests --build $(DEBUG) $(DEB_TESTS)

# ---------------------------------------------------------------- generated code

$(GENERATED) $(GEN_HEADERS) &: proto/kvcache.proto
	@mkdir -p build/gen
	$(call quiet,PROTOC)$(PROTOC_C) --c_out=build/gen $<

build/include/kvcache.h: client/kvcache.h
	@install -D -m 644 $< $@

build/include/kvcache/%.h: proto/%.h
	@install -D -m 644 $< $@

# Options, commands and prototypes in the manual are what the programs and the headers say.
$(COMPLETION): scripts/make-completion $(RELEASE)/kvcachectl
	@mkdir -p $(@D)
	$(call quiet,COMPLETE)scripts/make-completion $(RELEASE) > $@

define man_rules
build/man/$(patsubst %.in,%,$(notdir $(1))): $(1) scripts/make-man client/kvcache.h proto/status.h \
    $(RELEASE)/kvcached $(RELEASE)/kvcachectl
	@mkdir -p $$(@D)
	$$(call quiet,MAN)scripts/make-man $(RELEASE) $(VERSION) $(1) > $$@
endef
$(foreach s,$(MAN_SOURCES),$(eval $(call man_rules,$(s))))

# ---------------------------------------------------------------- device code

# Machine code for what there is today, and PTX that the driver compiles for what comes later.
FATBIN       := $(if $(NVCC),build/gen/kernels/pack_cuda.fatbin)
GPU_MACHINES := 80 90 100 120

ifneq ($(FATBIN),)
$(FATBIN): kernels/pack_cuda.cu kernels/pack_cuda_args.h kernels/pack_cuda.h kernels/pack.h \
           kernels/checksum.h proto/limits.h proto/status.h Makefile
	@mkdir -p $(@D)
	$(call quiet,NVCC)$(NVCC) -std=c++17 -O3 -I. -fatbin -o $@ $< \
	    $(foreach m,$(GPU_MACHINES),-gencode arch=compute_$(m),code=sm_$(m)) \
	    -gencode arch=compute_80,code=compute_80

%/obj/kernels/pack_cuda.o: COMPILE_FLAGS += -DKVC_CUDA=1 -Wa,-Ibuild/gen
$(foreach v,$(RELEASE) $(DEBUG),$(v)/obj/kernels/pack_cuda.o): $(FATBIN)
endif

# ---------------------------------------------------------------- one build variant

# $(1) folder, $(2) room. The folder itself is a prerequisite: its time changes when a file comes or
# goes, and an archive that keeps a removed file's object would hide a missing symbol.
define room_rules
$(call archive,$(1),$(2)): $(call objects,$(1),$(call room_sources,$(2))) $(2)
	@mkdir -p $$(@D) && rm -f $$@
	$$(call quiet,AR)$(AR) rcs $$@ $$(filter %.o,$$^)
endef

# $(1) flags, $(2) packages. Archives form one group for the linker: it takes from them only the
# objects that are used, in any order.
link = $(call quiet,LINK)mkdir -p $(@D) && $(CC) $(1) $(LINK_FLAGS) -o $@ \
    -Wl,--start-group $^ -Wl,--end-group $(call pkg_libs,$(2)) -lm -ldl

# $(1) folder, $(2) name of the variable with its flags (their commas would part arguments)
define variant_rules
$(1)/obj/%.o: %.c Makefile | $(GEN_HEADERS)
	@mkdir -p $$(@D)
	$$(call quiet,CC)$(CCACHE) $(CC) $$(COMPILE_FLAGS) $(WARNINGS) $$($(2)) -c -o $$@ $$<

$(1)/obj/gen/%.o: build/gen/proto/%.c Makefile
	@mkdir -p $$(@D)
	$$(call quiet,CC)$(CCACHE) $(CC) $$(COMPILE_FLAGS) -w $$($(2)) -c -o $$@ $$<

$(1)/kvcached: $(1)/obj/daemon/main.o $(call rooms,$(1),$(DAEMON_ROOMS) $(SHARED_ROOMS))
	$$(call link,$$($(2)),$(DAEMON_PKGS))

$(1)/kvcachectl: $(1)/obj/client/ctl/main.o \
                 $(call rooms,$(1),$(CTL_ROOMS) $(CLIENT_ROOMS) $(SHARED_ROOMS))
	$$(call link,$$($(2)),$(CTL_PKGS))

$(1)/libkvcache.so.0: $(call library,$(1)) client/libkvcache.map
	$$(call quiet,LINK)$(CC) -shared $$($(2)) $$(LINK_FLAGS) $(if $(SAN),,-Wl,-z,defs) \
	    -Wl,-soname,libkvcache.so.0 -Wl,--version-script=client/libkvcache.map \
	    -o $$@ $$(filter %.o,$$^) $$(call pkg_libs,$(CLIENT_PKGS)) -ldl

$(1)/libkvcache.so: $(1)/libkvcache.so.0
	@ln -sf libkvcache.so.0 $$@

# One relocatable object whose hidden symbols are made local: a program that links the static
# library cannot collide with, or reach, what is inside.
$(1)/libkvcache.a: $(call library,$(1))
	@rm -f $$@
	$$(call quiet,LINK)$(CC) -r -nostdlib -o $(1)/obj/libkvcache.o $$(filter %.o,$$^)
	@$(OBJCOPY) --localize-hidden $(1)/obj/libkvcache.o
	@$(AR) rcs $$@ $(1)/obj/libkvcache.o
endef

$(foreach r,$(ALL_ROOMS),$(eval $(call room_rules,$(RELEASE),$(r))))
$(foreach r,$(ALL_ROOMS),$(eval $(call room_rules,$(DEBUG),$(r))))
$(eval $(call variant_rules,$(RELEASE),RELEASE_FLAGS))
$(eval $(call variant_rules,$(DEBUG),DEBUG_FLAGS))

# ---------------------------------------------------------------- tests

# What a test program runs is built before it, so that none runs an old one.
$(sort $(TESTS) $(GPU_LINES)): $(DEBUG)/tests/%: $(DEBUG)/obj/tests/%.o $(call rooms,$(DEBUG),$(ALL_ROOMS)) \
                               | $(addprefix $(DEBUG)/,$(PRODUCTS))
	$(call link,$(DEBUG_FLAGS),$(TEST_PKGS))

$(addprefix $(DEBUG)/tests/unit/test_,build client_header): | $(addprefix $(RELEASE)/,$(PRODUCTS)) $(HEADERS)

FUZZ_HELP := $(addprefix $(DEBUG)/obj/tests/fuzz/,rig.o play_requests.o play_replies.o play_lend.o \
             hostile.o hostile_right.o)
$(filter $(DEBUG)/tests/fuzz/%,$(TESTS)): $(FUZZ_HELP) $(DEBUG)/obj/tests/fuzz/replay.o

$(FUZZERS): $(DEBUG)/fuzz/%: $(DEBUG)/obj/tests/fuzz/%.o $(FUZZ_HELP) \
                             $(call rooms,$(DEBUG),$(ALL_ROOMS))
	$(call link,$(DEBUG_FLAGS) -fsanitize=fuzzer,$(TEST_PKGS))

$(RELEASE)/tests/bench/peer_bench: $(addprefix $(RELEASE)/obj/tests/bench/,hosts.o perftest.o)
$(BENCHES) $(PROBE): $(RELEASE)/%: $(RELEASE)/obj/%.o $(call rooms,$(RELEASE),$(PRODUCT_ROOMS))
	$(call link,$(RELEASE_FLAGS),$(TEST_PKGS))

# These need the kernels only, so that a machine with a GPU and little else can build them.
$(GPU_KERNELS): $(RELEASE)/%: $(RELEASE)/obj/%.o $(RELEASE)/obj/tests/gpu/driver.o \
                $(call archive,$(RELEASE),kernels)
	$(call link,$(RELEASE_FLAGS),libxxhash)

# Linked first, they take the place of the one in the archive: one for the driver without a GPU, which
# needs no nvcc, and one without kernels.
FAKE_IMAGE := $(RELEASE)/obj/tests/gpu/fake/pack_cuda.o
NO_IMAGE   := $(RELEASE)/obj/tests/gpu/pack_cuda.o

$(FAKE_IMAGE): IMAGE_FLAGS := -DKVC_CUDA_STAND_IN=1
$(FAKE_IMAGE) $(NO_IMAGE): kernels/pack_cuda.c Makefile
	@mkdir -p $(@D)
	$(call quiet,CC)$(CCACHE) $(CC) $(COMPILE_FLAGS) $(WARNINGS) $(RELEASE_FLAGS) $(IMAGE_FLAGS) -c -o $@ $<

GPU_SCENE  := scene scene_baseline scene_daemon scene_worker switch
GPU_CLIENT := $(patsubst %,$(RELEASE)/obj/tests/gpu/%.o,$(GPU_SCENE)) \
              $(call rooms,$(RELEASE),$(CLIENT_ROOMS) $(SHARED_ROOMS))

$(filter-out %/$(BARE),$(GPU_DAEMONS)): $(RELEASE)/%: $(RELEASE)/obj/%.o $(GPU_CLIENT) | $(RELEASE)/kvcached
	$(call link,$(RELEASE_FLAGS),$(CLIENT_PKGS))

# Loaded before a daemon, it breaks a context of it.
$(RELEASE)/tests/gpu/test_lost_daemon_gpu: | $(RELEASE)/tests/gpu/libtrap.so
$(RELEASE)/tests/gpu/libtrap.so: $(RELEASE)/obj/tests/gpu/trap.o \
    $(call archive,$(RELEASE),kernels) $(call archive,$(RELEASE),proto)
	$(call quiet,LINK)mkdir -p $(@D) && $(CC) -shared $(LINK_FLAGS) -Wl,--exclude-libs,ALL -o $@ $^

$(RELEASE)/tests/gpu/$(BARE): $(NO_IMAGE) $(RELEASE)/obj/tests/gpu/$(BARE).o $(GPU_CLIENT) | $(RELEASE)/kvcached
	$(call link,$(RELEASE_FLAGS),$(CLIENT_PKGS))

$(FAKE)/kvcached: $(FAKE_IMAGE) $(RELEASE)/obj/daemon/main.o \
                  $(call rooms,$(RELEASE),$(DAEMON_ROOMS) $(SHARED_ROOMS))
	$(call link,$(RELEASE_FLAGS),$(DAEMON_PKGS))

$(filter-out %/$(BARE),$(FAKE_TESTS)): $(FAKE)/%: $(FAKE_IMAGE) $(RELEASE)/obj/tests/gpu/%.o $(GPU_CLIENT) \
                                       | $(FAKE)/kvcached
	$(call link,$(RELEASE_FLAGS),$(CLIENT_PKGS))

$(FAKE)/$(BARE): $(NO_IMAGE) $(RELEASE)/obj/tests/gpu/$(BARE).o $(GPU_CLIENT) | $(FAKE)/kvcached
	$(call link,$(RELEASE_FLAGS),$(CLIENT_PKGS))

$(FAKE_DEBUG)/kvcached: $(FAKE_IMAGE) $(DEBUG)/obj/daemon/main.o \
                        $(call rooms,$(DEBUG),$(DAEMON_ROOMS) $(SHARED_ROOMS))
	$(call link,$(DEBUG_FLAGS),$(DAEMON_PKGS))

$(FAKE_LINES): $(FAKE_DEBUG)/tests/%: $(FAKE_IMAGE) $(DEBUG)/obj/tests/%.o \
               $(call rooms,$(DEBUG),$(ALL_ROOMS)) | $(FAKE_DEBUG)/kvcached $(FAKE_GPU) $(FAKE_UCX)
	$(call link,$(DEBUG_FLAGS),$(TEST_PKGS))

$(RELEASE)/tests/gpu/fake/libcuda.so.1: \
    $(patsubst %,$(RELEASE)/obj/tests/gpu/fake/%.o,libcuda fail memory ipc stream)
$(RELEASE)/tests/gpu/fake/libnvidia-ml.so.1: $(RELEASE)/obj/tests/gpu/fake/libnvidia-ml.o
$(FAKE_GPU):
	$(call quiet,LINK)mkdir -p $(@D) && $(CC) -shared $(LINK_FLAGS) -Wl,-z,nodelete \
	    -Wl,-soname,$(@F) -o $@ $^

$(RELEASE)/tests/gpu/fake/libucp-gpu.so.0: $(RELEASE)/obj/tests/gpu/fake/libucp.o
	$(call quiet,LINK)mkdir -p $(@D) && $(CC) -shared $(LINK_FLAGS) -Wl,-soname,$(@F) -o $@ $^ \
	    -Wl,--no-as-needed -lucp

-include $(shell find $(RELEASE) -name '*.d' -type f -not -path '*/deb/*' 2>/dev/null)
