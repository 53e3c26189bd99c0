"""nginx in a guest, for the scripts of this directory."""

# The body of each answer.
PAGE_BYTES = 1024
_CONFIGURATION = """\
user root; pid /tmp/nginx.pid; error_log /tmp/nginx.log; events { worker_connections 512; }
http { access_log off; keepalive_requests 1000000000; client_body_temp_path /tmp/body; proxy_temp_path /tmp/proxy;
fastcgi_temp_path /tmp/fastcgi; uwsgi_temp_path /tmp/uwsgi; scgi_temp_path /tmp/scgi;
server { listen 80; root /tmp/www; } }
"""
# Shell commands that start it with one page, /page.
START = (
    f"mkdir -p /tmp/www && echo root:x:0: >/etc/group && echo '{' '.join(_CONFIGURATION.split())}' >/tmp/nginx.conf",
    f"head -c {PAGE_BYTES} /dev/zero >/tmp/www/page && nginx -p /tmp -c /tmp/nginx.conf",
)
