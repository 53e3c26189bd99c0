/*
 * relay - the least that a switch in a process has to do: frames of two devices to each other, by packet sockets.
 *
 * usage: relay DEVICE DEVICE
 *
 * Frames that are still to be segmented and summed pass as they are (PACKET_VNET_HDR). There is no table, no other process and no
 * tunnel: each frame costs one recv and one send, and the process sleeps in poll when there is none. A bound for bench/tunnels.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define FRAME_BYTES_MAX (65536 + 64)
/* Frames of one device before those of the other have their turn. */
#define TURN 32

static int open_device(const char *name)
{
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, 0), one = 1, room = 4 << 20;
	struct sockaddr_ll address = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = if_nametoindex(name) };
	struct packet_mreq all = { .mr_ifindex = address.sll_ifindex, .mr_type = PACKET_MR_PROMISC };

	if (fd < 0 || !address.sll_ifindex || setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof(one)) ||
	    setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof(one)) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room)) ||
	    setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof(all)) ||
	    bind(fd, (struct sockaddr *)&address, sizeof(address))) {
		perror(name);
		exit(1);
	}
	return fd;
}

static void forward(int from, int to)
{
	static char frame[FRAME_BYTES_MAX];

	for (int count = 0; count < TURN; count++) {
		ssize_t len = recv(from, frame, sizeof(frame), 0);

		if (len <= 0)
			return;
		/* A frame that the other device does not take is lost, as on a wire. */
		if (send(to, frame, len, 0) < 0 && errno == EBADF)
			exit(1);
	}
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: relay DEVICE DEVICE\n");
		return 2;
	}
	struct pollfd ends[2] = { { open_device(argv[1]), POLLIN, 0 }, { open_device(argv[2]), POLLIN, 0 } };

	for (;;) {
		if (poll(ends, 2, -1) < 0 && errno != EINTR)
			return 1;
		for (int end = 0; end < 2; end++)
			if (ends[end].revents)
				forward(ends[end].fd, ends[1 - end].fd);
	}
}
