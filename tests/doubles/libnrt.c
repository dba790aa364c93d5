/* A double of libnrt: the functions of nrt.h and nrt_experimental.h that neuron_dynamo calls, by their published prototypes.
 *
 * It proves marshalling, order, names, sizes and lifetimes, and nothing about a device. Every misuse is counted as a violation
 * and told (double_violations, double_last_violation). Programs are read and run by callbacks that the test registers.
 * Structs are never given back to malloc, so that a handle used after its release is recognised.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, FAILURE = 1, INVALID = 2, RESOURCE = 4, UNINITIALIZED = 13, CLOSED = 14, BAD_INPUT = 1002, NUM_ERR = 1003 };
enum { NEW, RUNNING, DONE };
enum { MAX_TENSORS = 8192, MAX_DIMS = 16, FUNCTIONS = 32 };

typedef struct {
    char name[256];
    int usage;
    size_t size;
    int dtype;
    uint32_t *shape;
    uint32_t ndim;
} tensor_info_t;

typedef struct {
    uint64_t count;
    tensor_info_t entries[];
} info_array_t;

typedef struct {
    uint32_t family;
    uint32_t size;
    char arch_name[16];
    char device_revision[8];
} instance_info_t;

typedef struct {
    uint32_t magic;
    bool live;
    int id, vnc;
    bool collectives;
    int count;
    tensor_info_t *infos;
    int *aliases; /* of each output, the input that it must share memory with, or -1 */
    uint32_t shapes[];
} model_t;

typedef struct {
    uint32_t magic;
    bool live, written, busy;
    int vnc, sets;
    size_t size;
    char *data;
} tensor_t;

typedef struct {
    uint32_t magic;
    bool live;
    int count;
    char (*names)[256];
    tensor_t **tensors;
} set_t;

#define MODEL 0x4d4f444cu
#define TENSOR 0x54454e53u
#define SET 0x53455420u

typedef int (*loader_t)(int model, const void *neff, size_t size);
typedef int (*executor_t)(int model, void *const *inputs, void *const *outputs);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER; /* around `loading`; taken before `lock` */
static int state = NEW, next_id = 1, cores = 2, family = 5;
static long violations, live_models, live_tensors, live_sets, live_infos, executions;
static size_t device_bytes, bytes_written;
static char last_violation[512];
static loader_t loader;
static executor_t executor;
static model_t *loading;

static struct {
    const char *name;
    long calls;
    int status, after, times;
} functions[FUNCTIONS];

static int violation(int status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    violations++;
    vsnprintf(last_violation, sizeof last_violation, format, arguments);
    va_end(arguments);
    return status;
}

/* Counts a call and answers the fault that was ordered for it, if any. Call with the lock held. */
static int entered(const char *name) {
    int i = 0;
    while (i < FUNCTIONS && functions[i].name && strcmp(functions[i].name, name)) i++;
    if (i == FUNCTIONS) return FAILURE;
    functions[i].name = name;
    functions[i].calls++;
    if (functions[i].times > 0 && functions[i].after-- <= 0) {
        functions[i].times--;
        return functions[i].status;
    }
    return OK;
}

/* The same for a function that needs a running runtime. */
static int started(const char *name) {
    int status = entered(name);
    if (state == NEW) return violation(UNINITIALIZED, "%s before nrt_init", name);
    if (state == DONE) return violation(CLOSED, "%s after nrt_close", name);
    return status;
}

#define ENTER(check)                      \
    pthread_mutex_lock(&lock);            \
    int status_ = check(__func__);        \
    if (status_) return leave(status_)

static int leave(int status) {
    pthread_mutex_unlock(&lock);
    return status;
}

static bool valid(const void *handle, uint32_t magic, const char *what) {
    if (!handle || *(const uint32_t *)handle != magic) return violation(0, "%s: not a handle", what);
    if (!((const bool *)handle)[sizeof(uint32_t)]) return violation(0, "%s: used after its release", what);
    return true;
}

/* Steering, for tests. */

void double_set_callbacks(loader_t load, executor_t execute) { loader = load, executor = execute; }
void double_configure(int visible, int instance_family) { cores = visible, family = instance_family; }
long double_violations(void) { return violations; }
const char *double_last_violation(void) { return last_violation; }
long double_live_models(void) { return live_models; }
long double_live_tensors(void) { return live_tensors; }
long double_live_sets(void) { return live_sets; }
long double_live_infos(void) { return live_infos; }
size_t double_device_bytes(void) { return device_bytes; }
size_t double_bytes_written(void) { return bytes_written; }

long double_calls(const char *name) {
    for (int i = 0; i < FUNCTIONS && functions[i].name; i++)
        if (!strcmp(functions[i].name, name)) return functions[i].calls;
    return 0;
}

/* The calls of `name` from the `after`-th on, `times` of them, answer `status`. */
void double_fail(const char *name, int status, int after, int times) {
    int i = 0;
    while (i < FUNCTIONS - 1 && functions[i].name && strcmp(functions[i].name, name)) i++;
    if (!functions[i].name) functions[i].name = strdup(name);
    functions[i].status = status, functions[i].after = after, functions[i].times = times;
}

/* As in a new process, but for what is still live. */
void double_reset(void) {
    state = NEW, violations = 0, last_violation[0] = 0, bytes_written = 0, executions = 0, cores = 2, family = 5;
    for (int i = 0; i < FUNCTIONS; i++) functions[i].calls = 0, functions[i].times = 0;
}

/* For the loader: a tensor of the model that is being loaded. */
void double_declare(const char *name, int usage, size_t size, int dtype, const uint32_t *shape, uint32_t ndim) {
    if (!loading || loading->count == MAX_TENSORS || ndim > MAX_DIMS) abort();
    tensor_info_t *info = &loading->infos[loading->count];
    snprintf(info->name, sizeof info->name, "%s", name);
    info->usage = usage, info->size = size, info->dtype = dtype, info->ndim = ndim;
    info->shape = &loading->shapes[loading->count * MAX_DIMS];
    memcpy(info->shape, shape, ndim * sizeof *shape);
    loading->aliases[loading->count++] = -1;
}

/* For the loader: output number `output` is computed in the memory of input number `input`. */
void double_declare_alias(int output, int input) {
    int seen = 0;
    for (int i = 0; i < loading->count; i++)
        if (loading->infos[i].usage == 1 && seen++ == output) loading->aliases[i] = input;
}

void double_declare_collectives(void) { loading->collectives = true; }

/* The runtime's own functions. */

int nrt_get_visible_vnc_count(uint32_t *count) {
    ENTER(entered);
    *count = cores;
    return leave(cores ? OK : FAILURE);
}

int nrt_get_total_vnc_count(uint32_t *count) {
    ENTER(entered);
    *count = cores > 8 ? cores : 8;
    return leave(OK);
}

int nrt_get_instance_info(instance_info_t *info, size_t size) {
    ENTER(entered);
    if (size != sizeof *info) return leave(violation(INVALID, "nrt_get_instance_info: a struct of %zu bytes", size));
    memset(info, 0, size);
    info->family = family;
    return leave(family ? OK : FAILURE);
}

const char *nrt_get_status_as_str(int status) {
    switch (status) {
    case OK: return "NRT_SUCCESS";
    case FAILURE: return "NRT_FAILURE";
    case INVALID: return "NRT_INVALID";
    case RESOURCE: return "NRT_RESOURCE";
    case 5: return "NRT_TIMEOUT";
    case 10: return "NRT_UNSUPPORTED_NEFF_VERSION";
    case UNINITIALIZED: return "NRT_UNINITIALIZED";
    case CLOSED: return "NRT_CLOSED";
    case BAD_INPUT: return "NRT_EXEC_BAD_INPUT";
    case NUM_ERR: return "NRT_EXEC_COMPLETED_WITH_NUM_ERR";
    default: return NULL;
    }
}

int nrt_init(int framework, const char *fw_version, const char *fal_version) {
    ENTER(entered);
    if (state == RUNNING) return leave(violation(FAILURE, "nrt_init twice"));
    if (state == DONE) return leave(violation(CLOSED, "nrt_init after nrt_close"));
    if (framework != 3) return leave(violation(INVALID, "nrt_init for framework %d", framework));
    if (!fw_version || !fal_version) return leave(violation(INVALID, "nrt_init without versions"));
    state = RUNNING;
    return leave(OK);
}

void nrt_close(void) {
    pthread_mutex_lock(&lock);
    started(__func__);
    if (live_models || live_tensors || live_sets || live_infos)
        violation(0, "nrt_close with %ld models, %ld tensors, %ld sets, %ld infos", live_models, live_tensors, live_sets, live_infos);
    state = DONE;
    const char *path = getenv("NRT_DOUBLE_REPORT");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "closed: %ld violations (%s), %ld executions\n", violations, last_violation, executions);
        fclose(file);
    }
    pthread_mutex_unlock(&lock);
}

static int read_program(model_t *made, const void *neff, size_t size) {
    pthread_mutex_lock(&load_lock);
    loading = made;
    int status = loader ? loader(made->id, neff, size) : INVALID; /* it calls double_declare */
    loading = NULL;
    pthread_mutex_unlock(&load_lock);
    return status;
}

static int load(const char *what, const void *neff, size_t size, int vnc, int vnc_count, bool collectives, void **model) {
    uint64_t header_size, data_size;
    if (!neff || size < 1024 || !model) return violation(INVALID, "%s: no NEFF", what);
    memcpy(&header_size, (const char *)neff + 8, 8);
    memcpy(&data_size, (const char *)neff + 16, 8);
    if (header_size != 1024 || data_size != size - 1024) return INVALID;
    if (vnc_count != -1) return violation(INVALID, "%s: vnc_count is %d; it is deprecated, always -1", what, vnc_count);
    if (vnc < 0 || vnc >= cores) return violation(INVALID, "%s: core %d of %d", what, vnc, cores);
    model_t *made = calloc(1, sizeof *made + MAX_TENSORS * MAX_DIMS * sizeof(uint32_t));
    made->infos = calloc(MAX_TENSORS, sizeof *made->infos);
    made->aliases = calloc(MAX_TENSORS, sizeof *made->aliases);
    made->magic = MODEL, made->live = true, made->vnc = vnc;
    pthread_mutex_lock(&lock);
    made->id = next_id++;
    pthread_mutex_unlock(&lock);
    int status = read_program(made, neff, size);
    pthread_mutex_lock(&lock);
    if (!status && made->collectives != collectives)
        status = violation(INVALID, "%s of a program %s collectives", what, collectives ? "without" : "with");
    if (status) {
        free(made->infos), free(made->aliases), free(made);
        return leave(status);
    }
    live_models++;
    *model = made;
    return leave(OK);
}

int nrt_load(const void *neff, size_t size, int32_t vnc, int32_t vnc_count, void **model) {
    ENTER(started);
    pthread_mutex_unlock(&lock);
    return load(__func__, neff, size, vnc, vnc_count, false, model);
}

int nrt_load_collectives(const void *neff, size_t size, int32_t vnc, int32_t vnc_count, uint32_t id, uint32_t world, void **model) {
    ENTER(started);
    if (id >= world) return leave(violation(INVALID, "nrt_load_collectives: rank %u of %u", id, world));
    pthread_mutex_unlock(&lock);
    return load(__func__, neff, size, vnc, vnc_count, true, model);
}

int nrt_unload(model_t *model) {
    ENTER(started);
    if (!valid(model, MODEL, __func__)) return leave(INVALID);
    model->live = false;
    live_models--;
    free(model->infos), free(model->aliases);
    return leave(OK);
}

int nrt_get_model_tensor_info(model_t *model, info_array_t **result) {
    ENTER(started);
    if (!valid(model, MODEL, __func__)) return leave(INVALID);
    info_array_t *array = malloc(sizeof *array + model->count * sizeof *array->entries);
    array->count = model->count;
    memcpy(array->entries, model->infos, model->count * sizeof *array->entries);
    live_infos++;
    *result = array;
    return leave(OK);
}

int nrt_free_model_tensor_info(info_array_t *array) {
    ENTER(started);
    memset(array->entries, 0xee, array->count * sizeof *array->entries); /* a name read afterwards is garbage */
    free(array);
    live_infos--;
    return leave(OK);
}

int nrt_tensor_allocate(int placement, int vnc, size_t size, const char *name, void **result) {
    ENTER(started);
    if (placement != 0 || vnc < 0 || vnc >= cores || !name)
        return leave(violation(INVALID, "nrt_tensor_allocate: placement %d, core %d, name %s", placement, vnc, name ? name : "NULL"));
    tensor_t *made = calloc(1, sizeof *made);
    made->magic = TENSOR, made->live = true, made->vnc = vnc, made->size = size;
    made->data = malloc(size ? size : 1);
    memset(made->data, 0xa5, size);
    live_tensors++, device_bytes += size;
    *result = made;
    return leave(OK);
}

void nrt_tensor_free(tensor_t **tensor) {
    pthread_mutex_lock(&lock);
    started(__func__);
    if (tensor && valid(*tensor, TENSOR, __func__)) {
        if ((*tensor)->sets) violation(0, "nrt_tensor_free of a tensor that is in a set");
        if ((*tensor)->busy) violation(0, "nrt_tensor_free of a tensor in use");
        (*tensor)->live = false;
        live_tensors--, device_bytes -= (*tensor)->size;
        free((*tensor)->data);
        *tensor = NULL;
    }
    pthread_mutex_unlock(&lock);
}

static int touch(tensor_t *tensor, const void *buffer, size_t offset, size_t size, const char *what) {
    if (!valid(tensor, TENSOR, what)) return INVALID;
    if (!buffer || offset > tensor->size || size > tensor->size - offset)
        return violation(INVALID, "%s: %zu bytes at %zu of %zu", what, size, offset, tensor->size);
    if (tensor->busy) return violation(INVALID, "%s of a tensor in use", what);
    return OK;
}

int nrt_tensor_write(tensor_t *tensor, const void *buffer, size_t offset, size_t size) {
    ENTER(started);
    int status = touch(tensor, buffer, offset, size, __func__);
    if (status) return leave(status);
    memcpy(tensor->data + offset, buffer, size);
    bytes_written += size;
    if (offset == 0 && size == tensor->size) tensor->written = true;
    return leave(OK);
}

int nrt_tensor_read(tensor_t *tensor, void *buffer, size_t offset, size_t size) {
    ENTER(started);
    int status = touch(tensor, buffer, offset, size, __func__);
    if (status) return leave(status);
    if (!tensor->written) return leave(violation(INVALID, "nrt_tensor_read of a tensor that nothing was written to"));
    memcpy(buffer, tensor->data + offset, size);
    return leave(OK);
}

int nrt_allocate_tensor_set(void **result) {
    ENTER(started);
    set_t *made = calloc(1, sizeof *made);
    made->magic = SET, made->live = true;
    made->names = calloc(MAX_TENSORS, sizeof *made->names);
    made->tensors = calloc(MAX_TENSORS, sizeof *made->tensors);
    live_sets++;
    *result = made;
    return leave(OK);
}

void nrt_destroy_tensor_set(set_t **set) {
    pthread_mutex_lock(&lock);
    started(__func__);
    if (set && valid(*set, SET, __func__)) {
        (*set)->live = false;
        for (int i = 0; i < (*set)->count; i++) (*set)->tensors[i]->sets--;
        free((*set)->names), free((*set)->tensors);
        live_sets--;
        *set = NULL;
    }
    pthread_mutex_unlock(&lock);
}

static tensor_t *find(const set_t *set, const char *name) {
    for (int i = 0; i < set->count; i++)
        if (!strcmp(set->names[i], name)) return set->tensors[i];
    return NULL;
}

int nrt_add_tensor_to_tensor_set(set_t *set, const char *name, tensor_t *tensor) {
    ENTER(started);
    if (!valid(set, SET, __func__) || !valid(tensor, TENSOR, __func__)) return leave(INVALID);
    if (!name || !*name || strlen(name) > 255 || set->count == MAX_TENSORS) return leave(violation(INVALID, "a tensor of no name"));
    if (find(set, name)) return leave(violation(INVALID, "%s twice in a set", name));
    strcpy(set->names[set->count], name);
    set->tensors[set->count++] = tensor;
    tensor->sets++;
    return leave(OK);
}

/* The tensors of one usage in the order of their declaration; BAD_INPUT where one is missing, of another size or elsewhere. */
static int collect(const model_t *model, const set_t *set, int usage, tensor_t **tensors, int *count) {
    *count = 0;
    for (int i = 0; i < model->count; i++) {
        const tensor_info_t *info = &model->infos[i];
        if (info->usage != usage) continue;
        tensor_t *tensor = find(set, info->name);
        if (!tensor) return violation(BAD_INPUT, "nrt_execute without %s", info->name);
        if (!tensor->live) return violation(BAD_INPUT, "nrt_execute with %s, which was freed", info->name);
        if (tensor->size != info->size) return violation(BAD_INPUT, "nrt_execute: %s has %zu bytes, not %zu", info->name, tensor->size, info->size);
        if (tensor->vnc != model->vnc) return violation(BAD_INPUT, "nrt_execute: %s is on core %d, not %d", info->name, tensor->vnc, model->vnc);
        if (usage == 0 && info->size && !tensor->written) return violation(BAD_INPUT, "nrt_execute: nothing was written to %s", info->name);
        if (tensor->busy) return violation(BAD_INPUT, "nrt_execute: %s is in use", info->name);
        tensors[(*count)++] = tensor;
    }
    if (*count != set->count) return violation(BAD_INPUT, "nrt_execute with %d tensors of usage %d, not %d", set->count, usage, *count);
    return OK;
}

/* Inputs and outputs share memory exactly where the program says so. */
static int sharing(const model_t *model, tensor_t **inputs, int in, tensor_t **outputs) {
    int number = 0;
    for (int i = 0; i < model->count; i++) {
        if (model->infos[i].usage != 1) continue;
        for (int j = 0; j < in; j++)
            if ((outputs[number] == inputs[j]) != (model->aliases[i] == j))
                return violation(BAD_INPUT, "nrt_execute: output %d %s input %d", number, model->aliases[i] == j ? "does not share" : "shares", j);
        number++;
    }
    return OK;
}

int nrt_execute(model_t *model, const set_t *input_set, set_t *output_set) {
    ENTER(entered);
    if (state != RUNNING) return leave(violation(state == NEW ? UNINITIALIZED : CLOSED, "nrt_execute outside of init and close"));
    if (!valid(model, MODEL, __func__) || !valid(input_set, SET, __func__) || !valid(output_set, SET, __func__)) return leave(INVALID);
    tensor_t **tensors = malloc((model->count + 1) * sizeof *tensors);
    void **data = malloc((model->count + 1) * sizeof *data);
    int in = 0, out = 0;
    int status = collect(model, input_set, 0, tensors, &in);
    if (!status) status = collect(model, output_set, 1, tensors + in, &out);
    if (!status) status = sharing(model, tensors, in, tensors + in);
    if (!status) {
        for (int i = 0; i < in + out; i++) tensors[i]->busy = true, data[i] = tensors[i]->data;
        executions++;
        pthread_mutex_unlock(&lock);
        status = executor ? executor(model->id, data, data + in) : OK;
        pthread_mutex_lock(&lock);
        for (int i = 0; i < in + out; i++) tensors[i]->busy = false;
        for (int i = in; i < in + out; i++) tensors[i]->written = true;
    }
    free(tensors), free(data);
    return leave(status);
}
