/*
 * wire-relay - the least that a process has to do for frames between two devices, with many frames a system call.
 *
 * usage: wire-relay packets|ring|xdp DEVICE DEVICE
 *
 * packets: recvmmsg and sendmmsg on packet sockets, with the header of virtio-net. ring: the same, and frames
 * are received by a ring in shared memory (PACKET_RX_RING). xdp: an XDP socket for queue 0 of each device, in copy
 * mode; both have one memory, so a frame is sent from where it was received. There is no table, no other process and no check.
 * It polls as long as frames come, and else sleeps in poll. A bound for bench/wires, which bench/relay.c is for bench/tunnels.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <linux/if_xdp.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    BATCH = 64,
    PACKET_BYTES = 10 + 65536, /* the header of virtio-net, and the longest frame */
    FRAME_BYTES = 2048,
    FRAMES = 1024, /* of each device */
    ENTRIES = 2 * FRAMES,
    SLOTS = 2048, /* of a packet socket's ring */
    VNET_BYTES = 10, /* the kernel puts the short header before a frame in a ring */
};

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void set(int fd, int level, int name, const void *value, socklen_t len) {
    if (setsockopt(fd, level, name, value, len)) fail("setsockopt");
}

static void sleep_until_frames(const int *fds) {
    struct pollfd ends[2] = {{fds[0], POLLIN, 0}, {fds[1], POLLIN, 0}};
    if (poll(ends, 2, -1) < 0 && errno != EINTR) fail("poll");
}

/* Packet sockets. */

static int packet_socket(const char *name) {
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, 0), one = 1, room = 8 << 20;
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = if_nametoindex(name)};
    struct packet_mreq all = {.mr_ifindex = address.sll_ifindex, .mr_type = PACKET_MR_PROMISC};
    if (fd < 0 || !address.sll_ifindex) fail(name);
    set(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one);
    set(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one);
    set(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one);
    set(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
    set(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all);
    if (bind(fd, (struct sockaddr *)&address, sizeof address)) fail("bind");
    return fd;
}

static void relay_packets(char **names) {
    static uint8_t bytes[BATCH][PACKET_BYTES];
    int fds[2] = {packet_socket(names[0]), packet_socket(names[1])};
    struct iovec parts[BATCH];
    struct mmsghdr messages[BATCH] = {0};
    for (;;) {
        int moved = 0;
        for (int end = 0; end < 2; end++) {
            for (int at = 0; at < BATCH; at++) {
                parts[at] = (struct iovec){bytes[at], PACKET_BYTES};
                messages[at].msg_hdr = (struct msghdr){.msg_iov = &parts[at], .msg_iovlen = 1};
            }
            int count = recvmmsg(fds[end], messages, BATCH, 0, NULL);
            for (int at = 0; at < count; at++) parts[at].iov_len = messages[at].msg_len;
            /* A frame that the other device does not take is lost, as on a wire. */
            for (int at = 0; at < count; moved++) {
                int sent = sendmmsg(fds[1 - end], messages + at, count - at, 0);
                at += sent > 0 ? sent : 1;
            }
        }
        if (!moved) sleep_until_frames(fds);
    }
}

/* Packet sockets with a ring for received frames. */

static uint8_t *packet_ring(int fd) {
    int version = TPACKET_V2;
    struct tpacket_req room = {.tp_block_size = 1 << 16, .tp_block_nr = SLOTS * FRAME_BYTES >> 16, .tp_frame_size = FRAME_BYTES, .tp_frame_nr = SLOTS};
    set(fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version);
    set(fd, SOL_PACKET, PACKET_RX_RING, &room, sizeof room);
    uint8_t *ring = mmap(NULL, SLOTS * FRAME_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (ring == MAP_FAILED) fail("mmap");
    return ring;
}

static struct tpacket2_hdr *slot(uint8_t *ring, uint32_t number) { return (void *)(ring + number % SLOTS * FRAME_BYTES); }

/* Sends each frame from the place where it was received; longer ones are lost. */
static int forward_slots(uint8_t *ring, uint32_t *next, int to) {
    struct iovec parts[BATCH];
    struct mmsghdr messages[BATCH] = {0};
    int count = 0;
    for (; count < BATCH; count++) {
        struct tpacket2_hdr *frame = slot(ring, *next + count);
        if (!(__atomic_load_n(&frame->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER)) break;
        parts[count] = (struct iovec){(uint8_t *)frame + frame->tp_mac - VNET_BYTES, frame->tp_snaplen + VNET_BYTES};
        messages[count].msg_hdr = (struct msghdr){.msg_iov = &parts[count], .msg_iovlen = 1};
    }
    for (int at = 0; at < count;) {
        int sent = sendmmsg(to, messages + at, count - at, 0);
        at += sent > 0 ? sent : 1;
    }
    for (int at = 0; at < count; at++) __atomic_store_n(&slot(ring, *next + at)->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
    *next += count;
    return count;
}

static void relay_slots(char **names) {
    int fds[2] = {packet_socket(names[0]), packet_socket(names[1])};
    uint8_t *rings[2] = {packet_ring(fds[0]), packet_ring(fds[1])};
    uint32_t next[2] = {0, 0};
    for (;;)
        if (!(forward_slots(rings[0], &next[0], fds[1]) + forward_slots(rings[1], &next[1], fds[0]))) sleep_until_frames(fds);
}

/* XDP sockets. */

struct ring {
    uint32_t *producer, *consumer, *flags, at; /* at: the index that is ours */
    void *entries;
};

struct end {
    int fd;
    struct ring fill, completion, receive, transmit;
};

static struct ring ring(int fd, const struct xdp_ring_offset *place, off_t offset, size_t entry_bytes) {
    uint8_t *base = mmap(NULL, place->desc + ENTRIES * entry_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, offset);
    if (base == MAP_FAILED) fail("mmap");
    return (struct ring){(void *)(base + place->producer), (void *)(base + place->consumer), (void *)(base + place->flags), 0, base + place->desc};
}

static int bpf(int command, union bpf_attr *attributes) {
    int fd = syscall(SYS_bpf, command, attributes, sizeof *attributes);
    if (fd < 0) fail("bpf");
    return fd;
}

/* The device's frames of queue 0 go to the socket; this process holds the program. */
static void direct(unsigned device, int socket) {
    uint32_t key = 0, value = socket;
    int map = bpf(BPF_MAP_CREATE, &(union bpf_attr){.map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = 1});
    bpf(BPF_MAP_UPDATE_ELEM, &(union bpf_attr){.map_fd = map, .key = (uintptr_t)&key, .value = (uintptr_t)&value});
    struct bpf_insn code[] = {
        {BPF_LDX | BPF_MEM | BPF_W, BPF_REG_2, BPF_REG_1, 16, 0}, /* the queue */
        {BPF_LD | BPF_DW | BPF_IMM, BPF_REG_1, BPF_PSEUDO_MAP_FD, 0, map},
        {0, 0, 0, 0, 0},
        {BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_3, 0, 0, XDP_DROP},
        {BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_redirect_map},
        {BPF_JMP | BPF_EXIT, 0, 0, 0, 0},
    };
    union bpf_attr load = {.prog_type = BPF_PROG_TYPE_XDP, .insn_cnt = sizeof code / sizeof *code};
    load.insns = (uintptr_t)code;
    load.license = (uintptr_t)"Apache-2.0";
    union bpf_attr link = {.link_create = {.prog_fd = bpf(BPF_PROG_LOAD, &load), .target_ifindex = device, .attach_type = BPF_XDP}};
    bpf(BPF_LINK_CREATE, &link);
}

static struct end xdp_socket(const char *name, void *memory, const struct end *first) {
    struct end end = {.fd = socket(AF_XDP, SOCK_RAW, 0)};
    struct xdp_umem_reg all = {.addr = (uintptr_t)memory, .len = 2 * FRAMES * FRAME_BYTES, .chunk_size = FRAME_BYTES};
    struct sockaddr_xdp address = {.sxdp_family = AF_XDP, .sxdp_ifindex = if_nametoindex(name)};
    struct xdp_mmap_offsets places;
    socklen_t len = sizeof places;
    int entries = ENTRIES;
    if (end.fd < 0 || !address.sxdp_ifindex) fail(name);
    if (!first) set(end.fd, SOL_XDP, XDP_UMEM_REG, &all, sizeof all);
    for (int which = XDP_RX_RING; which <= XDP_TX_RING; which++) set(end.fd, SOL_XDP, which, &entries, sizeof entries);
    for (int which = XDP_UMEM_FILL_RING; which <= XDP_UMEM_COMPLETION_RING; which++) set(end.fd, SOL_XDP, which, &entries, sizeof entries);
    if (getsockopt(end.fd, SOL_XDP, XDP_MMAP_OFFSETS, &places, &len)) fail("XDP_MMAP_OFFSETS");
    end.fill = ring(end.fd, &places.fr, XDP_UMEM_PGOFF_FILL_RING, sizeof(uint64_t));
    end.completion = ring(end.fd, &places.cr, XDP_UMEM_PGOFF_COMPLETION_RING, sizeof(uint64_t));
    end.receive = ring(end.fd, &places.rx, XDP_PGOFF_RX_RING, sizeof(struct xdp_desc));
    end.transmit = ring(end.fd, &places.tx, XDP_PGOFF_TX_RING, sizeof(struct xdp_desc));
    address.sxdp_flags = first ? XDP_SHARED_UMEM : XDP_COPY | XDP_USE_NEED_WAKEUP;
    if (first) address.sxdp_shared_umem_fd = first->fd;
    if (bind(end.fd, (struct sockaddr *)&address, sizeof address)) fail("bind");
    direct(address.sxdp_ifindex, end.fd);
    return end;
}

static uint32_t pending(const struct ring *ring) { return __atomic_load_n(ring->producer, __ATOMIC_ACQUIRE) - ring->at; }
static void publish(struct ring *ring) { __atomic_store_n(ring->producer, ring->at, __ATOMIC_RELEASE); }
static void release(struct ring *ring) { __atomic_store_n(ring->consumer, ring->at, __ATOMIC_RELEASE); }

/* Frames that `to` has sent go back to `from`, whose they are. */
static void refill(struct end *from, struct end *to) {
    uint64_t *sent = to->completion.entries, *fill = from->fill.entries;
    uint32_t count = pending(&to->completion);
    for (; count; count--) fill[from->fill.at++ % ENTRIES] = sent[to->completion.at++ % ENTRIES] & ~(FRAME_BYTES - 1ULL);
    release(&to->completion);
    publish(&from->fill);
}

static int forward(struct end *from, struct end *to) {
    struct xdp_desc *received = from->receive.entries, *sent = to->transmit.entries;
    refill(from, to);
    uint32_t count = pending(&from->receive), left = count = count < BATCH ? count : BATCH;
    for (; left; left--) sent[to->transmit.at++ % ENTRIES] = received[from->receive.at++ % ENTRIES];
    release(&from->receive);
    publish(&to->transmit);
    /* The kernel takes 32 frames a call. */
    while (count && __atomic_load_n(to->transmit.consumer, __ATOMIC_ACQUIRE) != to->transmit.at)
        if (sendto(to->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && errno != EAGAIN && errno != EBUSY && errno != ENOBUFS) fail("sendto");
    return count;
}

static void relay_xdp(char **names) {
    void *memory = mmap(NULL, 2 * FRAMES * FRAME_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) fail("mmap");
    struct end ends[2];
    ends[0] = xdp_socket(names[0], memory, NULL);
    ends[1] = xdp_socket(names[1], memory, &ends[0]);
    for (uint64_t frame = 0; frame < 2 * FRAMES; frame++) {
        struct ring *fill = &ends[frame / FRAMES].fill;
        ((uint64_t *)fill->entries)[fill->at++] = frame * FRAME_BYTES;
    }
    for (int end = 0; end < 2; end++) publish(&ends[end].fill);
    for (;;)
        if (!(forward(&ends[0], &ends[1]) + forward(&ends[1], &ends[0]))) sleep_until_frames((int[2]){ends[0].fd, ends[1].fd});
}

int main(int argc, char **words) {
    if (argc == 4 && !strcmp(words[1], "packets")) relay_packets(words + 2);
    if (argc == 4 && !strcmp(words[1], "ring")) relay_slots(words + 2);
    if (argc == 4 && !strcmp(words[1], "xdp")) relay_xdp(words + 2);
    fprintf(stderr, "usage: wire-relay packets|ring|xdp DEVICE DEVICE\n");
    return 2;
}
