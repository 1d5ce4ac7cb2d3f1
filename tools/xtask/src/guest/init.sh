#!/bin/busybox sh
# The guest's first process: sets the guest up, runs the command, reports, powers off.
#
# /adit/settings, written by xtask, gives MARKER, LIBRARIES, VFIO_MODULES, NVME_MODULES, VFIO_DEVICES, KERNEL_DEVICES.
# The second serial port carries everything that xtask reads (see output.rs); the first one is the console.

/bin/busybox --install -s /bin
# Where the kernel looks for modprobe.
ln -s bin /sbin
export PATH=/usr/local/bin:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /dev/pts /dev/hugepages
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /tmp
chmod 1777 /tmp /dev/shm
# As on any machine; the file system that it was unpacked to lets all users change it.
chmod 755 /
ln -s /proc/self/fd /dev/fd
exec </dev/null >/dev/ttyS0 2>&1
exec 3<>/dev/ttyS1
stty raw -echo <&3
. /adit/settings

# Closing the port waits until everything is out.
finish() {
	printf 'end\n' >&3
	exec 3>&-
	poweroff -f
}

fail() {
	printf '%serror %s\n' "$MARKER" "$*" >&3
	finish
	sleep 60
}

# Several modules in one process: starting one takes its time here.
load() {
	[ "$1" ] || return
	modprobe -a $1 || fail "the guest's kernel refuses a module of $1"
}

# Sets BDF for a device that is given as its address, or as "next": the first NVMe function that is not claimed.
CLAIMED=" $(echo "$VFIO_DEVICES $KERNEL_DEVICES" | tr ' ' '\n' | grep : | tr '\n' ' ')"
resolve() {
	BDF=$1
	if [ "$BDF" = next ]; then
		for device in /sys/bus/pci/devices/*; do
			BDF=${device##*/}
			case "$(cat "$device/class") $CLAIMED" in
			*" $BDF "*) ;;
			0x010802*) break ;;
			esac
			BDF=
		done
		[ "$BDF" ] || fail "an NVMe controller behind a bridge did not show up on the PCI bus"
		CLAIMED="$CLAIMED$BDF "
	fi
	[ -e "/sys/bus/pci/devices/$BDF" ] || fail "no PCI function at $BDF"
}

bind_to_vfio() {
	device=/sys/bus/pci/devices/$1
	[ -e "$device/driver" ] && echo "$1" >"$device/driver/unbind"
	echo vfio-pci >"$device/driver_override"
	echo "$1" >/sys/bus/pci/drivers_probe
	[ "$(basename "$(readlink "$device/driver")")" = vfio-pci ] ||
		fail "vfio-pci does not take $1 (is there an IOMMU that this kernel supports?)"
}

# Sets NODE to the first namespace's block device of the controller at $1, which the kernel finds in its own time.
wait_for_node() {
	for attempt in $(seq 100); do
		for NODE in /sys/bus/pci/devices/"$1"/nvme/nvme*/nvme*n*; do
			NODE=${NODE##*/}
			[ -b "/dev/$NODE" ] && return
		done
		sleep 0.1
	done
	NODE=none
}

load "$VFIO_MODULES"
index=0
for place in $VFIO_DEVICES; do
	resolve "$place"
	bind_to_vfio "$BDF"
	export "TARGET_$index=vfio:$BDF"
	index=$((index + 1))
done

load "$NVME_MODULES"
index=0
for place in $KERNEL_DEVICES; do
	resolve "$place"
	wait_for_node "$BDF"
	export "BLOCK_$index=/dev/$NODE" "GENERIC_$index=/dev/ng${NODE#nvme}"
	index=$((index + 1))
done

ip link set lo up
ulimit -l unlimited
[ "$LIBRARIES" ] && export "LD_LIBRARY_PATH=$LIBRARIES"
printf '%sstart\n' "$MARKER" >&3
(cd /root && exec sh /adit/command) >&3 2>&1 3>&-
code=$?
kill -9 -1
printf '%sexit %d\n' "$MARKER" "$code" >&3
dmesg | grep -E 'DMAR:.*fault|IO_PAGE_FAULT' | sed 's/^/fault /' >&3
finish
