#!/bin/busybox sh
# The first and only program of a guest (vm.rs). The host's files are its own, read-only; the data are on its disk,
# which also has the workload's scripts. It reports to the host over the console when it is set up, waits for its word,
# runs the command, and says what the disk moved.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
modprobe -a virtio_pci virtio_blk 9pnet_virtio 9p crc32c_generic ext4
echo "EBB booted"
ip link set lo up
exec 2>&1

fail() {
    echo "EBB failed $*"
    poweroff -f
}

mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 host /host || fail "the host's files cannot be mounted"
mount -t proc proc /host/proc
mount -t sysfs sys /host/sys
mount -t devtmpfs dev /host/dev
mkdir -p /host/dev/shm
for place in dev/shm tmp run; do
    mount -t tmpfs tmpfs "/host/$place"
done
# Without the writes by which the kernel completes a new file system in the background.
mount -t ext4 -o noinit_itable /dev/vda /host/mnt || fail "the disk cannot be mounted"

# Runs a script of the workload, as the host would.
script() {
    chroot /host /bin/sh -eu "/mnt/$1" /mnt/data /mnt/log "$SCALE" "$SEED" "$MORE_PATH"
}
# Sectors that the disk has read and written.
sectors() {
    awk '{ print $3 + $7 }' /sys/block/vda/stat
}
# The end of the log says why.
why() {
    tail -n 3 /host/mnt/log | tr '\n' ' '
}

script setup || fail "setup: $(why)"
sync
echo 3 >/proc/sys/vm/drop_caches
echo "EBB ready"
read -r go
before=$(sectors)
script command || fail "command: $(why)"
sync
echo "EBB done $(($(sectors) - before))"
read -r end
poweroff -f
