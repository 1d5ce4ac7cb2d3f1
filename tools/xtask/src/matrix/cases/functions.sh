# What the steps of the cases call.

# Writes, reads back and verifies 64 MiB of a target: random 16 KiB transfers, 32 at a time. More options may follow; of
# one given twice the last counts, here and below.
verified() {
	target=$1
	shift
	adit bench --filename=$target --rw=randrw --bs=16k --iodepth=32 --size=64M --verify=crc32c "$@"
}

# Reads and writes a target until it is ended, and shows progress. The last command of its shell.
load() {
	target=$1
	shift
	exec adit bench --filename=$target --rw=randrw --bs=16k --iodepth=8 --size=64M --time_based --eta=always "$@"
}

# Options of a benchmark that runs until it is ended, and shows progress.
endless="--time_based --runtime=60 --eta=always"

# Writes 1 MiB of a target.
writes() {
	target=$1
	shift
	adit bench --name=overwrites --filename=$target --rw=write --bs=64k --size=1M "$@"
}

# Starts a benchmark in the background, as process $load, and waits until it has completed I/Os.
begin() {
	: >/tmp/said
	"$@" >/tmp/said 2>&1 &
	load=$!
	until grep -q '\[r=' /tmp/said; do
		kill -0 $load || break
		sleep 0.1
	done
}

# Waits for its end, shows what it said, and ends with its exit code.
end() {
	wait $load
	code=$?
	cat /tmp/said
	exit $code
}

# Runs a text as the user who may lock memory according to limits.d, with that right.
as_user() {
	limit=$(awk '$1 == "user" && $3 == "memlock" { print $4 }' /etc/security/limits.d/*)
	su user -c "ulimit -l $limit && $1"
}

# Starts a command in the background, as process $setup, and waits until it runs a modprobe that takes two seconds.
slowly() {
	modprobe -r vfio-pci
	mkdir -p /usr/sbin
	printf '#!/bin/sh\ntouch /tmp/waits; sleep 2; exec /bin/modprobe "$@"\n' >/usr/sbin/modprobe
	chmod +x /usr/sbin/modprobe
	rm -f /tmp/waits
	"$@" &
	setup=$!
	until [ -e /tmp/waits ] || ! kill -0 $setup; do usleep 20000; done
}

# Shows what is left of `adit setup`: which driver has the first device, whose block device the first word names, and
# which files there are.
what_is_left() {
	basename $(readlink /sys/bus/pci/devices/0000:00:18.0/driver)
	cat /sys/bus/pci/devices/0000:00:18.0/driver_override
	ls $1
	find /var/lib/adit /etc/udev /run/udev /etc/security /etc/tmpfiles.d ! -type d 2>/dev/null
	echo nothing else
}

# Runs fio with these options, and `adit bench` on a target, three times in turns; both must run. Shows the medians of
# the eighth field of terse reports, the IOPS of reads.
in_turn() {
	target=$1
	shift
	job='--name=j --rw=randread --bs=4k --iodepth=32 --size=256M --time_based --runtime=1 --minimal --eta=never'
	set -o pipefail
	for round in 1 2 3; do
		# fio accepts an engine's options only after the engine.
		fio $job "$@" --fixedbufs --registerfiles --norandommap | cut -d';' -f8 >>/tmp/fio.iops || exit
		adit bench $job --norandommap --filename=$target | cut -d';' -f8 >>/tmp/adit.iops || exit
	done
	fio=$(sort -n /tmp/fio.iops | sed -n 2p)
	adit=$(sort -n /tmp/adit.iops | sed -n 2p)
	rm /tmp/fio.iops /tmp/adit.iops
	echo TOLD $target: fio $fio IOPS, adit $adit IOPS, ratio $(awk "BEGIN { print $adit / $fio }")
	[ $fio -gt 0 ] && [ $adit -gt 0 ]
}
